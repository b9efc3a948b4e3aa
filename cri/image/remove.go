package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// collector removes what nobody needs any more. While it does, nobody takes a lease.
type collector struct {
	images      *catalog
	layers      *layers
	content     *content
	leases      *leases
	keepPartial time.Duration // what a failed pull got is left so long, for its retry
}

// kept is everything that an image refers to, also one that cannot be read, or something under way needs.
func (c *collector) kept(held map[string]int) map[string]struct{} {
	kept := map[string]struct{}{}
	for _, r := range c.images.images.All() {
		for _, l := range r.Layers {
			kept[layerKey(l)] = struct{}{}
		}
		for _, d := range r.Content {
			kept[d.String()] = struct{}{}
		}
	}
	for k := range held {
		kept[k] = struct{}{}
	}
	for _, k := range c.images.spared() {
		kept[k] = struct{}{}
	}
	return kept
}

// remove removes an image with all its names. What others still stand on stays.
func (c *collector) remove(ctx context.Context, ref string, as kind) error {
	held, thaw := c.leases.freeze()
	defer thaw()
	r, err := c.images.remove(ref, as)
	if err != nil {
		return err
	}
	kept := c.kept(held)
	if err := c.layers.drop(ctx, r.Layers, kept); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	if err := c.drop(r.Content, kept); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	return nil
}

func (c *collector) drop(content []digest.Digest, kept map[string]struct{}) error {
	var errs []error
	for _, d := range content {
		if _, ok := kept[d.String()]; !ok {
			errs = append(errs, c.content.remove(d))
		}
	}
	return errors.Join(errs...)
}

// unpacked drops packed layers that were needed only to unpack them.
func (c *collector) unpacked(layers []ocispec.Descriptor) error {
	held, thaw := c.leases.freeze()
	defer thaw()
	var packed []digest.Digest
	for _, l := range layers {
		packed = append(packed, l.Digest)
	}
	return c.drop(packed, c.kept(held))
}

// collect removes what no image explains: content, layers, and what pulls that failed have left, once it is too old to
// be continued.
func (c *collector) collect(ctx context.Context) error {
	held, thaw := c.leases.freeze()
	defer thaw()
	old := time.Now().Add(-c.keepPartial)
	kept := c.kept(held)
	errs := []error{c.layers.collect(ctx, kept, old)}
	for _, r := range c.images.images.All() {
		errs = append(errs, c.layers.recount(ctx, r.Layers, r.PulledAt))
	}
	errs = append(errs, c.content.collect(func(d digest.Digest) bool {
		_, ok := kept[d.String()]
		return ok
	}, old))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	return nil
}
