package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berth-node/berth/cri/snapshot"
)

// layerKey is a layer among leased and kept things; by itself, its chain ID may be the digest of a blob too.
func layerKey(chain string) string { return "layer " + chain }

func layerKeys(chain []string) (keys []string) {
	for _, c := range chain {
		keys = append(keys, layerKey(c))
	}
	return keys
}

// lease keeps content and layers from being collected until release is called. To be taken before they are looked for.
func (s *Store) lease(keys ...string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		s.leases[k]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, k := range keys {
			if s.leases[k]--; s.leases[k] == 0 {
				delete(s.leases, k)
			}
		}
	}
}

// Remove removes the image that ref names (as for [Store.Get]) with all its names. Layers that other images or containers
// still stand on stay.
func (s *Store) Remove(ctx context.Context, ref string) error { return s.removeAs(ctx, ref, program) }

// RemoveModule is Remove for who runs WebAssembly, as [Store.PullModule] is Pull.
func (s *Store) RemoveModule(ctx context.Context, ref string) error {
	return s.removeAs(ctx, ref, module)
}

func (s *Store) removeAs(ctx context.Context, ref string, as kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.find(ref, as)
	if err != nil {
		return err
	}
	r, err := s.images.Get(id)
	if err != nil {
		return fmt.Errorf("image %q: %w", ref, ErrNotFound)
	}
	// What it would be found again by goes first.
	if err := s.removeLabel(id); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	// The names first: an image without a name can be removed again, a name without an image means nothing.
	for _, name := range s.namesOf(id) {
		if err := s.names.Delete(name); err != nil {
			return fmt.Errorf("remove image %q: %w", ref, err)
		}
	}
	if err := s.images.Delete(id); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	kept := s.kept()
	if err := s.dropLayers(ctx, r.Layers, kept); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	for _, d := range r.Content {
		if _, ok := kept[d.String()]; !ok {
			if err := s.content.remove(d); err != nil {
				return fmt.Errorf("remove image %q: %w", ref, err)
			}
		}
	}
	return nil
}

// kept is everything that an image refers to or something under way needs; the caller holds mu.
func (s *Store) kept() map[string]struct{} {
	kept := map[string]struct{}{}
	for _, r := range s.images.All() {
		for _, l := range r.Layers {
			kept[layerKey(l)] = struct{}{}
		}
		for _, d := range r.Content {
			kept[d.String()] = struct{}{}
		}
	}
	for k := range s.leases {
		kept[k] = struct{}{}
	}
	return kept
}

// dropLayers removes layers, given the lowest first, that are not kept. One that a container stands on stays, with those
// below it, until Collect finds it free.
func (s *Store) dropLayers(ctx context.Context, chain []string, kept map[string]struct{}) error {
	for _, l := range slices.Backward(chain) {
		if _, ok := kept[layerKey(l)]; ok {
			continue
		}
		err := s.cfg.Snapshots.Remove(ctx, l)
		if errors.Is(err, snapshot.ErrInUse) {
			continue
		}
		if err != nil {
			return err
		}
		if err := s.layers.Delete(l); err != nil {
			return err
		}
	}
	return nil
}

// Collect removes what no image explains: content, layers, and what pulls that failed have left, once it is too old to be
// continued.
func (s *Store) Collect(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := time.Now().Add(-s.cfg.KeepPartial)
	kept := s.kept()
	var errs []error
	parents := map[string]string{}
	for _, i := range s.cfg.Snapshots.List() {
		if i.Kind == snapshot.KindLayer {
			parents[i.Key] = i.Parent
		}
	}
	// What is young is kept with all it stands on.
	for key := range parents {
		if l, err := s.layers.Get(key); err == nil && l.Made.After(old) {
			for k := key; k != ""; k = parents[k] {
				kept[layerKey(k)] = struct{}{}
			}
		}
	}
	for _, key := range upwards(parents) {
		errs = append(errs, s.dropLayers(ctx, []string{key}, kept))
	}
	for key := range s.layers.All() {
		if _, err := s.cfg.Snapshots.Usage(ctx, key); errors.Is(err, snapshot.ErrNotFound) {
			errs = append(errs, s.layers.Delete(key))
		}
	}
	errs = append(errs, s.recount(ctx), s.content.collect(func(d digest.Digest) bool {
		_, ok := kept[d.String()]
		return ok
	}, old))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	return nil
}

// recount finds out what layers take whose record of that was lost.
func (s *Store) recount(ctx context.Context) error {
	for _, r := range s.images.All() {
		for _, l := range r.Layers {
			if _, err := s.layers.Get(l); err == nil {
				continue
			}
			u, err := s.cfg.Snapshots.Usage(ctx, l)
			if errors.Is(err, snapshot.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if err := s.layers.Note(l, layerRecord{Bytes: u.Bytes, Inodes: u.Inodes, Made: r.PulledAt}); err != nil {
				return err
			}
		}
	}
	return nil
}

// upwards orders layers so that what stands on another comes before it.
func upwards(parents map[string]string) []string {
	depth := func(k string) (n int) {
		for ; k != "" && n <= len(parents); k = parents[k] {
			n++
		}
		return n
	}
	var keys []string
	depths := map[string]int{}
	for k := range parents {
		keys = append(keys, k)
		depths[k] = depth(k)
	}
	slices.SortFunc(keys, func(a, b string) int { return depths[b] - depths[a] })
	return keys
}
