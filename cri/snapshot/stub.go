package snapshot

import (
	"errors"
	"log/slog"

	"github.com/berth-node/berth/cri/store"
)

// Mount says how to mount a snapshot.
type Mount struct {
	Type    string
	Source  string
	Options []string
}

// Mount mounts m at target, an existing directory.
func (m Mount) Mount(target string) error { return errors.ErrUnsupported }

// Unmount unmounts target.
func Unmount(target string) error { return errors.ErrUnsupported }

// NewOverlay opens.
func NewOverlay(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	return nil, errors.ErrUnsupported
}

// NewNative opens.
func NewNative(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	return nil, errors.ErrUnsupported
}
