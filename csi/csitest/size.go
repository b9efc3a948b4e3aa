package csitest

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// placed is a volume that is at a path.
func (svc nodeService) placed(rpc, id, path string) (*Volume, error) {
	d := svc.driver
	v := d.ledger.volume(id)
	switch {
	case v == nil:
		return nil, d.judge.wrong(codes.NotFound, "%s of %s, which no volume is", rpc, id)
	case v.Targets[path] != nil && !v.Targets[path].Undoing, v.Stage != nil && v.Stage.Path == path && !v.Stage.Undoing:
		return v, nil
	}
	return nil, d.judge.wrong(codes.NotFound, "%s of %s at %q, where it is not", rpc, id, path)
}

// NodeGetVolumeStats implements the service.
func (svc nodeService) NodeGetVolumeStats(_ context.Context, in *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d := svc.driver
	const rpc = "NodeGetVolumeStats"
	if !d.judge.can(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, d.judge.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, in.GetVolumeId())
	}
	v, err := svc.placed(rpc, in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	out := &csi.NodeGetVolumeStatsResponse{}
	if d.judge.can(VolumeCondition) {
		out.ProtoReflect().SetUnknown(condition(v))
	}
	if v.Block {
		out.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Bytes}}
		return out, nil
	}
	var s unix.Statfs_t
	if err := unix.Statfs(in.GetVolumePath(), &s); err != nil {
		return nil, internal(fmt.Errorf("statfs: %w", err))
	}
	size := s.Bsize
	out.Usage = []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(s.Blocks) * size, Available: int64(s.Bavail) * size,
			Used: int64(s.Blocks-s.Bfree) * size,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree)},
	}
	return out, nil
}

// condition is the field of NodeGetVolumeStatsResponse that version 1.13 of the specification has taken out: abnormal
// and a message.
func condition(v *Volume) []byte {
	var c []byte
	if v.Abnormal != "" {
		c = protowire.AppendVarint(protowire.AppendTag(c, 1, protowire.VarintType), 1)
	}
	c = protowire.AppendString(protowire.AppendTag(c, 2, protowire.BytesType), v.Abnormal)
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), c)
}

// NodeGetVolumeHealth implements the service.
func (svc nodeService) NodeGetVolumeHealth(_ context.Context, in *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	d := svc.driver
	const rpc = "NodeGetVolumeHealth"
	if !d.judge.can(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH) {
		return nil, d.judge.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, in.GetVolumeId())
	}
	v := d.ledger.volume(in.GetVolumeId())
	if v == nil {
		return nil, d.judge.wrong(codes.NotFound, "%s of %s, which no volume is", rpc, in.GetVolumeId())
	}
	health := &csi.VolumeHealth{VolumeId: v.ID}
	if v.Abnormal != "" {
		health.HealthStatuses = []*csi.VolumeHealth_VolumeHealthEntry{
			{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Sick", Message: v.Abnormal},
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// NodeExpandVolume implements the service.
func (svc nodeService) NodeExpandVolume(ctx context.Context, in *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d := svc.driver
	const rpc = "NodeExpandVolume"
	if !d.judge.can(csi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return nil, d.judge.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, in.GetVolumeId())
	}
	v, err := svc.placed(rpc, in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if d.judge.can(stages) && (v.Stage == nil || !v.Stage.Done) {
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s, which is not staged", rpc, v.ID)
	}
	want := max(v.Bytes, in.GetCapacityRange().GetRequiredBytes())
	if want > v.Bytes && d.judge.controls(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME) {
		return nil, d.judge.wrong(codes.OutOfRange, "%s of %s to %d bytes before ControllerExpandVolume", rpc, v.ID, want)
	}
	if err := d.mounts.enlarge(v, want); err != nil {
		return nil, internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	if err := d.mounts.fill(v, in.GetVolumePath()); err != nil {
		return nil, internal(err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: want}, nil
}
