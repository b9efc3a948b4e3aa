package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/mount"
)

// recovery has what the last driver on the data directory was killed in the middle of be done or undone.
type recovery struct {
	records   *records
	backends  *backends
	freezer   *freezer
	maker     *maker
	snapshots *snapshots
	log       *slog.Logger
}

// recover has the kernel and the disk be what the records say: what was being made or removed is removed, since whoever
// wants it asks for it again.
func (r *recovery) recover(ctx context.Context) {
	for _, u := range r.records.uses.All() {
		if err := r.settle(u); err != nil {
			r.log.Error("a volume that was mounted is not as it was", "volume", u.Volume, "error", err)
		}
	}
	clear := func(id string, remove func(context.Context, string) error) {
		ctx, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		if err := remove(ctx, id); err != nil {
			r.log.Error("what was half made or half removed stays for now", "id", id, "error", err)
		}
	}
	for _, g := range r.records.groups.All() {
		if g.State != record.Ready {
			clear(g.ID, r.snapshots.removeGroup)
		}
	}
	for _, s := range r.records.snaps.All() {
		if s.State != record.Ready {
			clear(s.ID, r.snapshots.removeSnapshot)
		}
	}
	for _, v := range r.records.volumes.All() {
		if v.State != record.Ready {
			clear(v.ID, r.maker.removeVolume)
		}
	}
	r.recoverDevices(ctx)
}

// recoverDevices takes away the devices of volumes that nobody uses.
func (r *recovery) recoverDevices(ctx context.Context) {
	ids, err := r.backends.images.Attached(ctx)
	if err != nil {
		r.log.Error("loop devices that nobody uses may stay", "error", err)
	}
	for _, id := range ids {
		if _, err := r.records.uses.Get(id); !errors.Is(err, fs.ErrNotExist) || !record.IsID(id) {
			continue
		}
		if err := closeLocked(ctx, id); err != nil {
			r.log.Error("an encrypted device that nobody uses stays", "volume", id, "error", err)
			continue
		}
		if err := r.backends.images.Detach(ctx, id); err != nil {
			r.log.Error("a loop device that nobody uses stays", "volume", id, "error", err)
		}
	}
}

// settle has the record of where a volume is mounted be true after the driver was killed.
func (r *recovery) settle(u record.Use) error {
	if u.Frozen {
		if err := r.freezer.thaw(u); err != nil {
			return err
		}
		u.Frozen = false
	}
	for target := range u.Targets {
		if mounted, err := mount.Is(target); err == nil && !mounted {
			delete(u.Targets, target)
		}
	}
	return r.records.uses.Put(u)
}
