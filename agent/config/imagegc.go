package config

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/eviction/collect/images"
)

// ImageGC says which images are removed, and how often they are looked at.
type ImageGC struct {
	images.Policy
	Period time.Duration
}

func defaultImageGC() ImageGC {
	return ImageGC{Policy: images.Policy{High: 85, Low: 80, MinAge: 2 * time.Minute}, Period: 5 * time.Minute}
}

// AddFlags adds the flags to fs.
func (g *ImageGC) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&g.High, "image-gc-high-threshold", g.High,
		"percentage of their file system from which on unused images are removed (100: never)")
	fs.IntVar(&g.Low, "image-gc-low-threshold", g.Low, "percentage of their file system down to which they are removed")
	fs.DurationVar(&g.MinAge, "minimum-image-ttl-duration", g.MinAge,
		"how long an image must have been here before it is removed for want of space")
	fs.DurationVar(&g.MaxAge, "maximum-image-gc-age", g.MaxAge,
		"remove images that no container has used for this long (0: never)")
	fs.DurationVar(&g.Period, "image-gc-period", g.Period, "how often that is done")
}

// Complete says what is wrong with the settings.
func (g *ImageGC) Complete() error {
	err := g.Validate()
	if g.Period <= 0 {
		err = errors.Join(err, fmt.Errorf("--image-gc-period %s: must be positive", g.Period))
	}
	return err
}
