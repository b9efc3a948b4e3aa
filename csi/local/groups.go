package local

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-node/berth/csi/local/record"
)

// groups is the service that makes snapshots of several volumes at one moment.
type groups struct {
	csi.UnimplementedGroupControllerServer
	d *Driver
}

// maxGroup bounds how many volumes are frozen at once.
const maxGroup = 100

func (groups) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

func (g groups) CreateVolumeGroupSnapshot(ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := named("name", r.GetName()); err != nil {
		return nil, err
	}
	if len(r.GetSourceVolumeIds()) == 0 || len(r.GetSourceVolumeIds()) > maxGroup {
		return nil, invalid("source_volume_ids", "from 1 to %d must be given", maxGroup)
	}
	if err := noParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	// In one order, so that two groups with the same volumes do not wait for each other.
	sources := slices.Clone(r.GetSourceVolumeIds())
	slices.Sort(sources)
	if sources = slices.Compact(sources); sources[0] == "" {
		return nil, invalid("source_volume_ids", "none must be empty")
	}
	id := idOf(groupKind, r.GetName())
	free, err := g.d.records.locks.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	had, err := g.d.records.groups.Get(id)
	switch {
	case err == nil && had.State == record.Ready:
		if !slices.Equal(had.Volumes, sources) {
			return nil, status.Errorf(codes.AlreadyExists, "name: a group snapshot %q is there of other volumes", r.GetName())
		}
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.d.snapshots.describeGroup(had)}, nil
	case err == nil:
		if err := g.d.snapshots.removeGroup(ctx, id); err != nil {
			return nil, failed("remove what is left of an earlier try", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, status.Errorf(codes.Internal, "find group snapshot: %v", err)
	}
	made, err := g.d.snapshots.snapshotAll(ctx, record.Group{ID: id, Name: r.GetName(), State: record.Making, Volumes: sources, Created: time.Now()})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.d.snapshots.describeGroup(made)}, nil
}

// snapshotAll makes the snapshots of a group while nobody writes to any of its volumes.
func (sn *snapshots) snapshotAll(ctx context.Context, group record.Group) (out record.Group, err error) {
	var volumes []record.Volume
	for _, id := range group.Volumes {
		v, free, err := sn.records.volume(ctx, id)
		if err != nil {
			return group, err
		}
		defer free()
		volumes = append(volumes, v)
		group.Snapshots = append(group.Snapshots, idOf(snapshotKind, group.ID+"/"+id))
	}
	if err := sn.records.groups.Put(group); err != nil {
		return group, failed("make group snapshot", err)
	}
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		if undone := sn.removeGroup(undo, group.ID); undone != nil {
			sn.log.Error("what was made of a group snapshot that failed stays for now", "group", group.ID, "error", undone)
		}
	}()
	for _, v := range volumes {
		thaw, err := sn.freezer.still(ctx, v)
		if err != nil {
			return group, err
		}
		defer thaw()
	}
	for i, v := range volumes {
		s := record.Snapshot{ID: group.Snapshots[i], Name: group.Name + "/" + v.ID, Group: group.ID}
		if _, err := sn.snapshot(ctx, v, s); err != nil {
			return group, err
		}
	}
	group.State = record.Ready
	if err := sn.records.groups.Put(group); err != nil {
		return group, failed("make group snapshot", err)
	}
	return group, nil
}

func (sn *snapshots) describeGroup(g record.Group) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: g.State == record.Ready}
	for _, id := range g.Snapshots {
		if s, err := sn.records.snaps.Get(id); err == nil {
			out.Snapshots = append(out.Snapshots, sn.place.describeSnapshot(s))
		}
	}
	return out
}

// removeGroup removes a group snapshot with its snapshots; it is no error when there is none. Its lock is held.
func (sn *snapshots) removeGroup(ctx context.Context, id string) error {
	g, err := sn.records.groups.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if g.State != record.Removing {
		if err := sn.records.groups.Leave(id); err != nil {
			return err
		}
	}
	for _, s := range g.Snapshots {
		free, err := sn.records.locks.lock(ctx, s)
		if err != nil {
			return err
		}
		err = sn.removeSnapshot(ctx, s)
		free()
		if err != nil {
			return err
		}
	}
	return sn.records.groups.Delete(id)
}

func (g groups) DeleteVolumeGroupSnapshot(ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := named("group_snapshot_id", r.GetGroupSnapshotId()); err != nil {
		return nil, err
	}
	free, err := g.d.records.locks.lock(ctx, r.GetGroupSnapshotId())
	if err != nil {
		return nil, err
	}
	defer free()
	if had, err := g.d.records.groups.Get(r.GetGroupSnapshotId()); err == nil {
		if err := sameMembers(had, r.GetSnapshotIds()); err != nil {
			return nil, err
		}
	}
	if err := g.d.snapshots.removeGroup(ctx, r.GetGroupSnapshotId()); err != nil {
		return nil, failed("remove group snapshot", err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// sameMembers says whether a caller has the same snapshots in mind as the record, where it names them.
func sameMembers(g record.Group, ids []string) error {
	for _, id := range ids {
		if !slices.Contains(g.Snapshots, id) {
			return invalid("snapshot_ids", "%q is not of the group", shorten(id))
		}
	}
	return nil
}

func (g groups) GetVolumeGroupSnapshot(_ context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if err := named("group_snapshot_id", r.GetGroupSnapshotId()); err != nil {
		return nil, err
	}
	had, err := g.d.records.groups.Get(r.GetGroupSnapshotId())
	if err == nil && had.State != record.Ready {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, notFound("group snapshot", r.GetGroupSnapshotId(), err)
	}
	if err := sameMembers(had, r.GetSnapshotIds()); err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.d.snapshots.describeGroup(had)}, nil
}
