package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
)

func (c controller) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := named("name", r.GetName()); err != nil {
		return nil, err
	}
	if err := named("source_volume_id", r.GetSourceVolumeId()); err != nil {
		return nil, err
	}
	if err := noParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	if !c.d.place.here(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "accessibility_requirements: this is node %s, which is none of those", c.d.place.node)
	}
	id := idOf(snapshotKind, r.GetName())
	free, err := c.d.records.locks.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	had, err := c.d.records.snaps.Get(id)
	switch {
	case err == nil && had.State == record.Ready:
		if had.Volume != r.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "name: a snapshot %q is there of another volume", r.GetName())
		}
		return c.made(had, r), nil
	case err == nil:
		if err := c.d.snapshots.removeSnapshot(ctx, id); err != nil {
			return nil, failed("remove what is left of an earlier try", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, status.Errorf(codes.Internal, "find snapshot: %v", err)
	}
	v, unlock, err := c.d.records.volume(ctx, r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	thaw, err := c.d.freezer.still(ctx, v)
	if err != nil {
		return nil, err
	}
	defer thaw()
	s, err := c.d.snapshots.snapshot(ctx, v, record.Snapshot{ID: id, Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	return c.made(s, r), nil
}

// made answers who asks for a snapshot. Where it is usable from is told to who has not named the place already.
func (c controller) made(s record.Snapshot, r *csi.CreateSnapshotRequest) *csi.CreateSnapshotResponse {
	out := c.d.place.describeSnapshot(s)
	if r.GetAccessibilityRequirements() != nil {
		out.AccessibleTopology = nil
	}
	return &csi.CreateSnapshotResponse{Snapshot: out}
}

func noParameters(parameters map[string]string) error {
	for name := range parameters {
		if len(name) < len("csi.storage.k8s.io/") || name[:len("csi.storage.k8s.io/")] != "csi.storage.k8s.io/" {
			return invalid("parameters", "there is no parameter %q of snapshots", shorten(name))
		}
	}
	return nil
}

// snapshots makes snapshots and groups of them, and removes them.
type snapshots struct {
	records  *records
	backends *backends
	space    *space
	freezer  *freezer
	place    place
	log      *slog.Logger
}

// snapshot makes a snapshot of a volume that is still.
func (sn *snapshots) snapshot(ctx context.Context, v record.Volume, s record.Snapshot) (record.Snapshot, error) {
	s.State, s.Volume, s.Created, s.Content = record.Making, v.ID, time.Now(), v.Content
	// Of a copy it takes what the volume takes, at most.
	takes := copied(s, sn.backends.storage(v.Type).Taken(ctx, v.ID))
	if err := sn.space.reserve(ctx, v.Type, "", takes, func() error { return sn.records.snaps.Put(s) }); err != nil {
		return s, err
	}
	sn.records.step.at("copy")
	shared, err := sn.backends.storage(v.Type).Copy(ctx, s.ID, v.ID)
	if err == nil {
		s.State, s.Shared = record.Ready, shared
		err = sn.records.snaps.Put(s)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		if undone := sn.removeSnapshot(undo, s.ID); undone != nil {
			sn.log.Error("what was made of a snapshot that failed stays for now", "snapshot", s.ID, "error", undone)
		}
		return s, failed("make snapshot", err)
	}
	return s, nil
}

func (c controller) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := named("snapshot_id", r.GetSnapshotId()); err != nil {
		return nil, err
	}
	free, err := c.d.records.locks.lock(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	defer free()
	if s, err := c.d.records.snaps.Get(r.GetSnapshotId()); err == nil && s.Group != "" {
		// CSI, "DeleteSnapshot": one of a group goes with its group.
		return nil, invalid("snapshot_id", "the snapshot is of the group %s, and is removed with it", s.Group)
	}
	if err := c.d.snapshots.removeSnapshot(ctx, r.GetSnapshotId()); err != nil {
		return nil, failed("remove snapshot", err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// removeSnapshot removes a snapshot; it is no error when there is none. Its lock is held.
func (sn *snapshots) removeSnapshot(ctx context.Context, id string) error {
	s, err := sn.records.snaps.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.State != record.Removing {
		if err := sn.records.snaps.Leave(id); err != nil {
			return err
		}
	}
	sn.records.step.at("remove storage")
	if err := sn.backends.storage(s.Type).Remove(ctx, id); err != nil {
		return err
	}
	return sn.records.snaps.Delete(id)
}
