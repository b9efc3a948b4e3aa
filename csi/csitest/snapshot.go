package csitest

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot implements the service.
func (svc controllerService) CreateSnapshot(ctx context.Context, in *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d := svc.driver
	const rpc = "CreateSnapshot"
	name := in.GetName()
	if err := d.judge.offers(rpc, name, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return nil, err
	}
	v := d.ledger.volume(in.GetSourceVolumeId())
	if v == nil || name == "" {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", in.GetSourceVolumeId())
	}
	id := "s-" + name
	old := d.State().Snapshots[id]
	if old != nil && old.Volume != v.ID {
		return nil, d.judge.wrong(codes.AlreadyExists, "%s of %s from %s, but it is of %s", rpc, name, v.ID, old.Volume)
	}
	if old == nil {
		from := d.Data(v.ID)
		if v.Block || d.opts.Kind == Loop {
			from = d.store.image(v.ID)
		}
		if err := d.store.make(&Volume{ID: id, Bytes: v.Bytes, Block: v.Block}, from); err != nil {
			return nil, internal(err)
		}
		if err := d.happen(ctx, Within); err != nil {
			return nil, err
		}
	}
	var s Snapshot
	d.ledger.update(func(all *State) {
		if all.Snapshots[id] == nil {
			all.Snapshots[id] = &Snapshot{ID: id, Name: name, Volume: v.ID, Bytes: v.Bytes, Parameters: in.GetParameters()}
		}
		all.Snapshots[id].Asked++
		s = *all.Snapshots[id]
	})
	return &csi.CreateSnapshotResponse{Snapshot: svc.snapshot(&s)}, nil
}

func (svc controllerService) snapshot(s *Snapshot) *csi.Snapshot {
	d := svc.driver
	var at time.Time
	if fi, err := os.Stat(d.store.home(s.ID)); err == nil {
		at = fi.ModTime()
	}
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Volume, SizeBytes: s.Bytes, CreationTime: timestamppb.New(at),
		ReadyToUse: s.Asked > d.opts.SnapshotCalls,
	}
}

// DeleteSnapshot implements the service.
func (svc controllerService) DeleteSnapshot(ctx context.Context, in *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	d := svc.driver
	const rpc = "DeleteSnapshot"
	id := in.GetSnapshotId()
	if err := d.judge.offers(rpc, id, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return nil, err
	}
	if s := d.State().Snapshots[id]; s != nil && s.Group != "" {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s, which is of group snapshot %s", rpc, id, s.Group)
	}
	if d.State().Snapshots[id] == nil {
		d.ledger.note("%s of %s, which no snapshot is", rpc, id)
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err := os.RemoveAll(d.store.home(id)); err != nil {
		return nil, internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	d.ledger.update(func(s *State) { delete(s.Snapshots, id) })
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements the service.
func (svc controllerService) ListSnapshots(_ context.Context, in *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	d := svc.driver
	all := d.State().Snapshots
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(id string) bool {
		return in.GetSnapshotId() != "" && in.GetSnapshotId() != id || in.GetSourceVolumeId() != "" && in.GetSourceVolumeId() != all[id].Volume
	})
	from, to, next, err := page(in.GetStartingToken(), in.GetMaxEntries(), len(ids))
	if err != nil {
		return nil, err
	}
	out := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids[from:to] {
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: svc.snapshot(all[id])})
	}
	return out, nil
}
