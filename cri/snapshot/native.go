package snapshot

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/internal/filetree"
)

// native is the driver whose snapshots are whole copies.
type native struct{ dirs directories }

// NewNative opens the snapshots below root that are whole copies. It needs nothing of the filesystem, and is fast only
// where that can share the blocks of copied files.
func NewNative(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	s, err := open(root, db, log, func(d directories) driver { return &native{d} })
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (n *native) name() string         { return "native" }
func (n *native) independent() bool    { return false }
func (n *native) whiteouts() Whiteouts { return WhiteoutsApply }

func (n *native) fill(ctx context.Context, dir string, layers []uint64) error {
	if len(layers) == 0 {
		return nil
	}
	if err := copyAll(ctx, dir, n.dirs.files(layers[0])); err != nil {
		return fmt.Errorf("copy its parent: %w", err)
	}
	return nil
}

func (n *native) writable(ctx context.Context, id uint64, layers []uint64) ([]Mount, error) {
	if err := n.copyOf(ctx, id, layers); err != nil {
		return nil, err
	}
	return []Mount{{Type: "bind", Source: n.dirs.files(id)}}, nil
}

func (n *native) view(id uint64, layers []uint64) ([]Mount, error) {
	return n.dirs.bindView(id, layers)
}

// base is the highest layer, which has the files of those below it.
func (n *native) base(_ uint64, layers []uint64) (string, func() error, error) {
	return n.dirs.files(layers[0]), func() error { return nil }, nil
}

// copyOf makes the files of a writable snapshot. They get their name when all are there; what a crash left half copied
// is begun again.
func (n *native) copyOf(ctx context.Context, id uint64, layers []uint64) error {
	if _, err := os.Lstat(n.dirs.files(id)); !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	part := filepath.Join(n.dirs.dir(id), "part")
	if err := errors.Join(filetree.RemoveAll(ctx, part), os.MkdirAll(part, 0o755)); err != nil {
		return err
	}
	if len(layers) > 0 {
		if err := copyAll(ctx, part, n.dirs.files(layers[0])); err != nil {
			return err
		}
	}
	return os.Rename(part, n.dirs.files(id))
}

// copyShare is how much of what is free one copy may take.
const copyShare = 0.9

// copyAll copies a directory as long as ctx lasts and the disk has more than others need.
func copyAll(ctx context.Context, dst, src string) error {
	room, err := filetree.RoomOf(filepath.Dir(dst), copyShare)
	if err != nil {
		return err
	}
	return filetree.Copy(ctx, dst, src, room)
}
