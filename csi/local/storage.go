package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/csi/local/backend"
	"github.com/berth-node/berth/csi/local/record"
)

// storage is what volumes and snapshots are in.
type storage interface {
	Make(ctx context.Context, id string, bytes int64) error
	Copy(ctx context.Context, id, from string) (shared bool, err error)
	Remove(ctx context.Context, id string) error
	// Taken is how many bytes each of some takes. Of one that is not in it that is not known.
	Taken(ctx context.Context, ids ...string) map[string]int64
	Free(ctx context.Context) (int64, error)
	Missing(ctx context.Context, id string, bytes int64) error
}

// devices is a storage whose volumes are block devices.
type devices interface {
	storage
	Grow(ctx context.Context, id string, bytes int64) error
	Attach(ctx context.Context, id string, keep bool) (device string, release func(), err error)
	Detach(ctx context.Context, id string) error
	Device(ctx context.Context, id string) (string, error)
}

// backends are the kinds of storage that the node has.
type backends struct {
	dirs   *backend.Directories
	images backend.Images
	lvm    *backend.LVM // nil: not configured
	vault  vault
}

func newBackends(c *Config) (b *backends, err error) {
	b = &backends{
		dirs: &backend.Directories{Dir: filepath.Join(c.DataDir, "volumes")}, images: backend.Images{Dir: filepath.Join(c.DataDir, "images")},
		vault: newVault(c.DataDir),
	}
	if c.VolumeGroup != "" {
		b.lvm, err = backend.NewLVM(c.VolumeGroup, c.ThinPool)
	}
	return b, err
}

// storage is where volumes of a type are.
func (b *backends) storage(kind string) storage {
	if kind == typeDirectory {
		return b.dirs
	}
	return b.devices(kind)
}

func (b *backends) devices(kind string) devices {
	if kind == typeLVM {
		if b.lvm == nil {
			return absent{errors.New("this node has no volume group any more (--volume-group)")}
		}
		return b.lvm
	}
	return b.images
}

// absent is the storage of volumes that were made when there was one.
type absent struct{ why error }

func (a absent) Make(context.Context, string, int64) error                    { return a.why }
func (a absent) Copy(context.Context, string, string) (bool, error)           { return false, a.why }
func (a absent) Remove(context.Context, string) error                         { return a.why }
func (a absent) Taken(context.Context, ...string) map[string]int64            { return nil }
func (a absent) Free(context.Context) (int64, error)                          { return 0, a.why }
func (a absent) Missing(context.Context, string, int64) error                 { return a.why }
func (a absent) Grow(context.Context, string, int64) error                    { return a.why }
func (a absent) Detach(context.Context, string) error                         { return a.why }
func (a absent) Device(context.Context, string) (string, error)               { return "", a.why }
func (a absent) Attach(context.Context, string, bool) (string, func(), error) { return "", nil, a.why }

// makeStorage makes what a volume is stored in, from its source where it has one.
func (b *backends) makeStorage(ctx context.Context, v *record.Volume) error {
	s := b.storage(v.Type)
	if v.Source == "" {
		return s.Make(ctx, v.ID, deviceBytes(v.Content))
	}
	shared, err := s.Copy(ctx, v.ID, v.Source)
	if err != nil {
		return err
	}
	v.Shared = shared
	if v.Type == typeDirectory {
		return nil
	}
	return b.devices(v.Type).Grow(ctx, v.ID, deviceBytes(v.Content))
}

// growStorage has what a volume is stored in be as large as the record says. A crash between the record and this is
// made good here, too, when the volume is staged or expanded next.
func (b *backends) growStorage(ctx context.Context, v record.Volume) error {
	if v.Type != typeDirectory {
		return b.devices(v.Type).Grow(ctx, v.ID, deviceBytes(v.Content))
	}
	if !v.Limited {
		return nil
	}
	return b.dirs.Limit(v.ID, v.Capacity)
}

// deviceOf is the device that a volume is on, or that users get; "" when it has none now.
func (b *backends) deviceOf(ctx context.Context, v record.Volume) (string, error) {
	if v.Encrypted {
		if open, err := b.vault.isOpen(v.ID); err != nil || !open {
			return "", err
		}
		// Where udev names devices this is a link, which leads nowhere from where a block device is published.
		return filepath.EvalSymlinks(b.vault.path(v.ID))
	}
	return b.devices(v.Type).Device(ctx, v.ID)
}

func (b *backends) blockSize(ctx context.Context, v record.Volume) (int64, error) {
	device, err := b.deviceOf(ctx, v)
	if err == nil && device == "" {
		err = fmt.Errorf("the volume has no device")
	}
	if err != nil {
		return 0, err
	}
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}
