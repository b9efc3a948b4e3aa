package snapshot

import (
	"context"
	"fmt"

	"github.com/berth-node/berth/internal/filetree"
)

// Usage counts what a snapshot takes by itself, as far as it can before an error.
func (s *snapshotter) Usage(ctx context.Context, key string) (Usage, error) {
	r, err := s.table.Get(key)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, ErrNotFound)
	}
	switch {
	case r.Kind == KindView:
		return Usage{}, nil
	case r.Usage != nil:
		return *r.Usage, nil
	}
	c, err := filetree.Count(ctx, s.dirs.files(r.ID))
	u := Usage(c)
	if err != nil {
		return u, fmt.Errorf("usage of snapshot %s: %w", key, err)
	}
	if r.Kind == KindLayer {
		err = s.update(key, r.ID, func(r *record) { r.Usage = &u })
	}
	return u, err
}
