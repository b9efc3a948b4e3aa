package snapshot

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/continuity/fs"

	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/internal/filetree"
)

type native struct{ *shelf }

// NewNative opens the snapshots below root that are whole copies. It needs nothing of the filesystem, and is fast only
// where that can share the blocks of copied files.
func NewNative(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	s, err := openShelf(root, "native", db, log)
	if err != nil {
		return nil, err
	}
	return &native{s}, nil
}

func (n *native) Name() string      { return "native" }
func (n *native) Independent() bool { return false }

func (n *native) Begin(_ context.Context, key, parent string) (Layer, error) {
	layers, err := n.chain(parent)
	if err != nil {
		return nil, fmt.Errorf("begin layer %s: %w", key, err)
	}
	l, err := n.begin(key, parent, WhiteoutsApply)
	if err != nil || len(layers) == 0 {
		return l, err
	}
	if err := fs.CopyDir(l.Dir(), n.files(layers[0])); err != nil {
		return nil, errors.Join(fmt.Errorf("begin layer %s: copy its parent: %w", key, err), l.Abort())
	}
	return l, nil
}

func (n *native) Prepare(ctx context.Context, key, parent string) ([]Mount, error) {
	defer n.lock(key)()
	r, err := n.add(key, parent, KindActive)
	if err != nil {
		return nil, fmt.Errorf("prepare snapshot %s: %w", key, err)
	}
	if err := n.copyOf(ctx, r.ID, parent); err != nil {
		return nil, fmt.Errorf("prepare snapshot %s: %w", key, err)
	}
	return []Mount{{Type: "bind", Source: n.files(r.ID)}}, nil
}

// copyOf makes the files of a writable snapshot. They get their name when all are there; what a crash left half copied is
// begun anew.
func (n *native) copyOf(ctx context.Context, id uint64, parent string) error {
	if _, err := os.Lstat(n.files(id)); !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	layers, err := n.chain(parent)
	if err != nil {
		return err
	}
	part := filepath.Join(n.dir(id), "part")
	if err := errors.Join(filetree.RemoveAll(ctx, part), os.MkdirAll(part, 0o755)); err != nil {
		return err
	}
	if len(layers) > 0 {
		if err := fs.CopyDir(part, n.files(layers[0])); err != nil {
			return err
		}
	}
	return os.Rename(part, n.files(id))
}

func (n *native) View(_ context.Context, key, parent string) ([]Mount, error) {
	defer n.lock(key)()
	r, err := n.add(key, parent, KindView)
	if err != nil {
		return nil, fmt.Errorf("view snapshot %s: %w", key, err)
	}
	dir := n.files(r.ID)
	if layers, err := n.chain(parent); err != nil {
		return nil, fmt.Errorf("view snapshot %s: %w", key, err)
	} else if len(layers) > 0 {
		dir = n.files(layers[0])
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("view snapshot %s: %w", key, err)
	}
	return []Mount{{Type: "bind", Source: dir, Options: []string{"ro"}}}, nil
}
