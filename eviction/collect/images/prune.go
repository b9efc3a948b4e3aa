package images

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ReasonPrune is why images are removed that somebody had removed by hand.
const ReasonPrune = "prune"

// Removed is an image that goes.
type Removed struct {
	ID    string
	Names []string
	// Bytes are those that are free without it. Of what images share, the last of them that goes has it.
	Bytes int64
}

// Prune removes every image that no pod needs, has used just now, or would miss; with dryRun it only says which. It
// goes on where one cannot be removed.
func (c *Collector) Prune(ctx context.Context, now time.Time, dryRun bool) ([]Removed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.detect(ctx, now); err != nil {
		return nil, err
	}
	parts := c.parts()
	list := c.removable(now)
	var err error
	if !dryRun {
		_, err = c.remove(ctx, list, ReasonPrune, func(int64) bool { return false })
		if c.cfg.Content != nil {
			err = errors.Join(err, c.cfg.Content(ctx))
		}
		err = errors.Join(err, c.tell(ctx, now))
	}
	var out []Removed
	for _, r := range list {
		if !dryRun && c.images[keyOf(r.image)] != nil {
			continue // it stays
		}
		names := append(append([]string{}, r.image.GetRepoTags()...), r.image.GetRepoDigests()...)
		out = append(out, Removed{ID: r.image.GetId(), Names: names, Bytes: parts.take(r.image)})
	}
	return out, err
}

// parts is what images are made of, with how many of those that are left have each part.
type parts struct {
	of    map[string]map[string]int64
	users map[string]int
}

func (c *Collector) parts() *parts {
	p := &parts{users: map[string]int{}}
	if c.cfg.Parts != nil {
		p.of = c.cfg.Parts()
	}
	for _, list := range p.of {
		for key := range list {
			p.users[key]++
		}
	}
	return p
}

// take is what is free when an image goes: what it shares with nobody who is left.
func (p *parts) take(img *runtimeapi.Image) int64 {
	list, ok := p.of[img.GetId()]
	if !ok {
		return int64(img.GetSize())
	}
	var bytes int64
	for key, n := range list {
		if p.users[key]--; p.users[key] == 0 {
			bytes += n
		}
	}
	delete(p.of, img.GetId()) // an image of two handlers is one
	return bytes
}
