package csitest

import (
	"context"
	"maps"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// GroupControllerGetCapabilities implements the service.
func (groupService) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot implements the service.
func (svc groupService) CreateVolumeGroupSnapshot(ctx context.Context, in *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	d := svc.driver
	const rpc = "CreateVolumeGroupSnapshot"
	if in.GetName() == "" || len(in.GetSourceVolumeIds()) == 0 {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %q without a name or volumes", rpc, in.GetName())
	}
	id := "g-" + in.GetName()
	if old := d.State().Groups[id]; old != nil && !slices.Equal(old.Volumes, in.GetSourceVolumeIds()) {
		return nil, d.judge.wrong(codes.AlreadyExists, "%s of %s from %v, but it is of %v", rpc, in.GetName(), in.GetSourceVolumeIds(), old.Volumes)
	} else if old == nil {
		if err := svc.make(ctx, id, in); err != nil {
			return nil, err
		}
	}
	var g Group
	d.ledger.update(func(all *State) {
		all.Groups[id].Asked++
		g = *all.Groups[id]
	})
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: id, CreationTime: timestamppb.Now(), ReadyToUse: g.Asked > d.opts.SnapshotCalls}
	for _, one := range g.Snapshots {
		s := controllerService{driver: d}.snapshot(d.State().Snapshots[one])
		s.GroupSnapshotId, s.ReadyToUse = id, out.ReadyToUse
		out.Snapshots = append(out.Snapshots, s)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: out}, nil
}

// make makes the snapshots of a group, and then remembers it.
func (svc groupService) make(ctx context.Context, id string, in *csi.CreateVolumeGroupSnapshotRequest) error {
	d := svc.driver
	g, made := &Group{ID: id, Name: in.GetName(), Volumes: in.GetSourceVolumeIds()}, map[string]*Snapshot{}
	for i, of := range in.GetSourceVolumeIds() {
		v := d.ledger.volume(of)
		if v == nil {
			return status.Errorf(codes.NotFound, "there is no volume %q", of)
		}
		from := d.Data(v.ID)
		if v.Block || d.opts.Kind == Loop {
			from = d.store.image(v.ID)
		}
		s := &Snapshot{ID: "s-" + in.GetName() + "-" + v.ID, Volume: v.ID, Bytes: v.Bytes, Group: id}
		if err := d.store.make(&Volume{ID: s.ID, Bytes: v.Bytes, Block: v.Block}, from); err != nil {
			return internal(err)
		}
		made[s.ID], g.Snapshots = s, append(g.Snapshots, s.ID)
		if i == 0 {
			if err := d.happen(ctx, Within); err != nil {
				return err
			}
		}
	}
	d.ledger.update(func(all *State) {
		maps.Copy(all.Snapshots, made)
		all.Groups[id] = g
	})
	return nil
}

// DeleteVolumeGroupSnapshot implements the service.
func (svc groupService) DeleteVolumeGroupSnapshot(ctx context.Context, in *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	d := svc.driver
	const rpc = "DeleteVolumeGroupSnapshot"
	id := in.GetGroupSnapshotId()
	g := d.State().Groups[id]
	if g == nil {
		d.ledger.note("%s of %s, which no group snapshot is", rpc, id)
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if !slices.Equal(slices.Sorted(slices.Values(g.Snapshots)), slices.Sorted(slices.Values(in.GetSnapshotIds()))) {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s with the snapshots %v, and it has %v", rpc, id, in.GetSnapshotIds(), g.Snapshots)
	}
	for i, one := range g.Snapshots {
		if err := os.RemoveAll(d.store.home(one)); err != nil {
			return nil, internal(err)
		}
		if i == 0 {
			if err := d.happen(ctx, Within); err != nil {
				return nil, err
			}
		}
	}
	d.ledger.update(func(s *State) {
		for _, one := range g.Snapshots {
			delete(s.Snapshots, one)
		}
		delete(s.Groups, id)
	})
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// ControllerModifyVolume implements the service.
func (svc controllerService) ControllerModifyVolume(ctx context.Context, in *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	d := svc.driver
	const rpc = "ControllerModifyVolume"
	if err := d.judge.offers(rpc, in.GetVolumeId(), csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
		return nil, err
	}
	if d.ledger.volume(in.GetVolumeId()) == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", in.GetVolumeId())
	}
	if len(in.GetMutableParameters()) == 0 {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s without parameters", rpc, in.GetVolumeId())
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	d.ledger.change(in.GetVolumeId(), func(v *Volume) {
		if v.Mutable == nil {
			v.Mutable = map[string]string{}
		}
		maps.Copy(v.Mutable, in.GetMutableParameters())
	})
	return &csi.ControllerModifyVolumeResponse{}, nil
}
