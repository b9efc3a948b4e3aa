package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Usage counts what a snapshot takes by itself.
func (s *shelf) Usage(ctx context.Context, key string) (Usage, error) {
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
	u, err := count(ctx, s.files(r.ID))
	if err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
	}
	if r.Kind == KindLayer {
		err = s.update(key, r.ID, func(r *record) { r.Usage = &u })
	}
	return u, err
}

// count adds up the blocks below dir as du does: hard links once. Files may vanish meanwhile.
func count(ctx context.Context, dir string) (Usage, error) {
	var u Usage
	linked := map[uint64]struct{}{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !info.IsDir() {
			if _, ok := linked[st.Ino]; ok {
				return nil
			}
			linked[st.Ino] = struct{}{}
		}
		u.Bytes += uint64(st.Blocks) * 512
		u.Inodes++
		return nil
	})
	return u, err
}
