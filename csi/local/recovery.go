package local

import (
	"context"
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
	stager    *stager
	log       *slog.Logger
}

// recover has the kernel and the disk be what the records say: what was being made or removed is removed, since whoever
// wants it asks for it again.
func (r *recovery) recover(ctx context.Context) {
	r.adopt(ctx)
	for _, u := range r.records.uses.All() {
		if err := r.settle(ctx, u); err != nil {
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

// adopt has the encrypted devices that an earlier driver has opened be known for their volumes'.
func (r *recovery) adopt(ctx context.Context) {
	for _, v := range r.records.volumes.All() {
		if !v.Encrypted {
			continue
		}
		below, err := r.backends.devices(v.Type).Device(ctx, v.ID)
		if err == nil {
			err = r.backends.vault.adopt(ctx, v.ID, below)
		}
		if err != nil {
			r.log.Error("an encrypted device that an earlier driver has opened may not be known for the volume's", "volume", v.ID, "error", err)
		}
	}
}

// recoverDevices takes away the devices of volumes that nobody uses.
func (r *recovery) recoverDevices(ctx context.Context) {
	ids, err := r.backends.images.Attached(ctx)
	if err != nil {
		r.log.Error("loop devices that nobody uses may stay", "error", err)
	}
	for _, id := range ids {
		if !record.IsID(id) || r.records.uses.Has(id) {
			continue
		}
		// Where no record tells of it any more, somebody may have it all the same.
		if v, err := r.records.volumes.Get(id); err == nil {
			if at, err := r.backends.mountedAt(ctx, v); err != nil || at != "" {
				r.log.Warn("a volume is mounted that is not known to be", "volume", id, "path", at, "error", err)
				continue
			}
		}
		if err := r.backends.vault.close(ctx, id); err != nil {
			r.log.Error("an encrypted device that nobody uses stays", "volume", id, "error", err)
			continue
		}
		if err := r.backends.images.Detach(ctx, id); err != nil {
			r.log.Error("a loop device that nobody uses stays", "volume", id, "error", err)
		}
	}
}

// settle has the record of where a volume is mounted be true after the driver was killed, or could not write it.
func (r *recovery) settle(ctx context.Context, u record.Use) error {
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
	v, err := r.records.volumes.Get(u.Volume)
	if err == nil && len(u.Targets) == 0 && u.Staging != "" {
		staged, err := r.stager.isStaged(ctx, v, u.Staging)
		if err != nil {
			return err
		}
		if !staged { // what there is of it would be done once more anyway
			if err := r.stager.takeDown(ctx, v, u); err != nil {
				return err
			}
			u.Staging, u.Staged = "", record.Mount{}
		}
	}
	return r.records.putUse(u)
}
