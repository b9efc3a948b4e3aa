package csitest

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func nodeCalls() []csi.NodeServiceCapability_RPC_Type {
	return []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		VolumeCondition,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	}
}

// VolumeCondition is the capability that drivers have until version 1.12 of the specification: a condition in the
// answer of NodeGetVolumeStats.
const VolumeCondition csi.NodeServiceCapability_RPC_Type = 4

const (
	stages  = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	writers = csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
)

// NodeGetInfo implements the service.
func (svc nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	d := svc.driver
	out := &csi.NodeGetInfoResponse{NodeId: d.opts.NodeID, MaxVolumesPerNode: d.opts.MaxVolumes}
	if len(d.opts.Topology) > 0 {
		out.AccessibleTopology = &csi.Topology{Segments: d.opts.Topology}
	}
	return out, nil
}

// NodeGetCapabilities implements the service.
func (svc nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	d := svc.driver
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.opts.Node {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// wrong is the answer to a call that is against the specification.
func (j judge) wrong(code codes.Code, format string, args ...any) error {
	j.ledger.violation(format, args...)
	return status.Errorf(code, format, args...)
}

// known is a volume of a call, which is made here where any is taken.
func (d *Driver) known(id, rpc string) (*Volume, error) {
	if v := d.ledger.volume(id); v != nil {
		return v, nil
	}
	if !d.opts.AnyVolume {
		return nil, d.judge.wrong(codes.NotFound, "%s of %s, which no volume is", rpc, id)
	}
	if err := d.Add(id, defaultBytes, nil); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return d.ledger.volume(id), nil
}

// allowed checks a capability against what the driver says that it can do.
func (j judge) allowed(rpc, id string, c *csi.VolumeCapability) error {
	if c.GetMount() == nil && c.GetBlock() == nil {
		return j.wrong(codes.InvalidArgument, "%s of %s has no access type", rpc, id)
	}
	mode := c.GetAccessMode().GetMode()
	multi := []csi.VolumeCapability_AccessMode_Mode{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	}
	switch {
	case mode == csi.VolumeCapability_AccessMode_UNKNOWN:
		return j.wrong(codes.InvalidArgument, "%s of %s has no access mode", rpc, id)
	case slices.Contains(multi, mode) && !j.can(writers):
		return j.wrong(codes.InvalidArgument, "%s of %s has the access mode %s without the capability", rpc, id, mode)
	case c.GetMount().GetVolumeMountGroup() != "" && !j.can(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP):
		return j.wrong(codes.InvalidArgument, "%s of %s has a mount group without the capability", rpc, id)
	}
	return nil
}

// attached checks that a controller that attaches volumes was asked to.
func (j judge) attached(rpc string, v *Volume, publishContext map[string]string) error {
	if !j.controls(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) || v.Ephemeral {
		return nil
	}
	want, ok := v.Attached[j.opts.NodeID]
	if !ok {
		return j.wrong(codes.FailedPrecondition, "%s of %s before ControllerPublishVolume", rpc, v.ID)
	}
	if arguments(want) != arguments(publishContext) {
		return j.wrong(codes.InvalidArgument, "%s of %s with another publish context", rpc, v.ID)
	}
	return nil
}

// NodeStageVolume implements the service.
func (svc nodeService) NodeStageVolume(ctx context.Context, in *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d := svc.driver
	const rpc = "NodeStageVolume"
	id, at := in.GetVolumeId(), in.GetStagingTargetPath()
	if !d.judge.can(stages) {
		return nil, d.judge.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, id)
	}
	v, err := d.known(id, rpc)
	if err != nil {
		return nil, err
	}
	if err := d.judge.allowed(rpc, id, in.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if err := d.judge.attached(rpc, v, in.GetPublishContext()); err != nil {
		return nil, err
	}
	if err := d.judge.stagingPath(rpc, v, at); err != nil {
		return nil, err
	}
	args := arguments(capability(in.GetVolumeCapability()), in.GetVolumeContext(), in.GetPublishContext())
	if v.Stage != nil && !v.Stage.Undoing && v.Stage.Arguments != args {
		return nil, d.judge.wrong(codes.AlreadyExists, "%s of %s with other arguments than before: %s, not %s", rpc, id, args, v.Stage.Arguments)
	}
	if arguments(v.Context) != arguments(in.GetVolumeContext()) && len(v.Context) > 0 {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s with another volume context: %v", rpc, id, in.GetVolumeContext())
	}
	d.ledger.change(id, func(v *Volume) { v.Stage = &Place{Path: at, Arguments: args} })
	if err := d.mounts.stage(v, at, in.GetVolumeCapability(), d.within(ctx)); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stagingPath checks where a volume is to be staged: at one place, a directory that the caller has made.
func (j judge) stagingPath(rpc string, v *Volume, at string) error {
	if err := j.below(at); err != nil {
		return j.wrong(codes.InvalidArgument, "%s of %s: %v", rpc, v.ID, err)
	}
	if fi, err := os.Stat(at); err != nil || !fi.IsDir() {
		return j.wrong(codes.FailedPrecondition, "%s of %s: %s is no directory", rpc, v.ID, at)
	}
	if v.Stage != nil && v.Stage.Path != at {
		return j.wrong(codes.FailedPrecondition, "%s of %s at %s, but it is staged at %s", rpc, v.ID, at, v.Stage.Path)
	}
	return nil
}

// NodeUnstageVolume implements the service.
func (svc nodeService) NodeUnstageVolume(ctx context.Context, in *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d := svc.driver
	const rpc = "NodeUnstageVolume"
	id, at := in.GetVolumeId(), in.GetStagingTargetPath()
	if !d.judge.can(stages) {
		return nil, d.judge.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, id)
	}
	if err := d.judge.below(at); err != nil {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s: %v", rpc, id, err)
	}
	v := d.ledger.volume(id)
	switch {
	case v == nil:
		d.ledger.note("%s of %s, which no volume is", rpc, id)
		return &csi.NodeUnstageVolumeResponse{}, nil
	case len(v.Targets) > 0:
		for path := range v.Targets {
			return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s, which is published at %s", rpc, id, path)
		}
	case v.Stage == nil:
		d.ledger.note("%s of %s, which is not staged", rpc, id)
	case v.Stage.Path != at:
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s at %s, but it is staged at %s", rpc, id, at, v.Stage.Path)
	}
	d.ledger.change(id, func(v *Volume) {
		if v.Stage != nil {
			v.Stage.Done, v.Stage.Undoing = false, true
		}
	})
	if err := d.mounts.unstage(v, at, d.within(ctx)); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements the service.
func (svc nodeService) NodePublishVolume(ctx context.Context, in *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d := svc.driver
	const rpc = "NodePublishVolume"
	id, at := in.GetVolumeId(), in.GetTargetPath()
	v, err := svc.publishable(rpc, in)
	if err != nil {
		return nil, err
	}
	if err := d.judge.allowed(rpc, id, in.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if err := d.judge.attached(rpc, v, in.GetPublishContext()); err != nil {
		return nil, err
	}
	if err := d.judge.target(rpc, v, in); err != nil {
		return nil, err
	}
	args := arguments(capability(in.GetVolumeCapability()), lasting(in.GetVolumeContext()), in.GetPublishContext(), in.GetReadonly(),
		in.GetStagingTargetPath())
	was := v.Targets[at]
	if was != nil && !was.Undoing && was.Arguments != args {
		return nil, d.judge.wrong(codes.AlreadyExists, "%s of %s with other arguments than before: %s, not %s", rpc, id, args, was.Arguments)
	}
	d.ledger.change(id, func(v *Volume) {
		if v.Targets[at] == nil || v.Targets[at].Arguments != args {
			v.Targets[at] = &Place{Path: at, Arguments: args}
		}
		v.Targets[at].Undoing = false
	})
	if err := d.mounts.publish(v, in, d.within(ctx)); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishable is the volume that is to be published: one that is staged, or made now because it is of its pod.
func (svc nodeService) publishable(rpc string, in *csi.NodePublishVolumeRequest) (*Volume, error) {
	d := svc.driver
	id := in.GetVolumeId()
	if in.GetVolumeContext()[ephemeral] == "true" {
		if in.GetStagingTargetPath() != "" {
			return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s, of its pod, with a staging path", rpc, id)
		}
		if v := d.ledger.volume(id); v != nil {
			return v, nil
		}
		v := &Volume{ID: id, Name: id, Bytes: defaultBytes, Ephemeral: true, Targets: map[string]*Place{}}
		if err := d.store.make(v, ""); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		d.ledger.update(func(s *State) { s.Volumes[id] = v })
		return d.ledger.volume(id), nil
	}
	v, err := d.known(id, rpc)
	if err != nil || !d.judge.can(stages) {
		return v, err
	}
	switch {
	case v.Stage == nil || !v.Stage.Done:
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s, which is not staged", rpc, id)
	case v.Stage.Path != in.GetStagingTargetPath():
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s from %s, but it is staged at %s", rpc, id, in.GetStagingTargetPath(), v.Stage.Path)
	}
	return v, nil
}

// lasting is a volume context without what is another one at each call.
func lasting(all map[string]string) map[string]string {
	kept := map[string]string{}
	for k, v := range all {
		if k != tokensKey {
			kept[k] = v
		}
	}
	return kept
}

// target checks where a volume is to be published.
func (j judge) target(rpc string, v *Volume, in *csi.NodePublishVolumeRequest) error {
	at := in.GetTargetPath()
	if err := j.below(at); err != nil {
		return j.wrong(codes.InvalidArgument, "%s of %s: %v", rpc, v.ID, err)
	}
	if fi, err := os.Stat(filepath.Dir(at)); err != nil || !fi.IsDir() {
		return j.wrong(codes.FailedPrecondition, "%s of %s: the parent of %s is no directory", rpc, v.ID, at)
	}
	if in.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		for other := range v.Targets {
			if other != at {
				return j.wrong(codes.FailedPrecondition, "%s of %s, of a single writer, at %s and at %s", rpc, v.ID, at, other)
			}
		}
	}
	return nil
}

// NodeUnpublishVolume implements the service.
func (svc nodeService) NodeUnpublishVolume(ctx context.Context, in *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d := svc.driver
	const rpc = "NodeUnpublishVolume"
	id, at := in.GetVolumeId(), in.GetTargetPath()
	if err := d.judge.below(at); err != nil {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s: %v", rpc, id, err)
	}
	v := d.ledger.volume(id)
	if v == nil {
		d.ledger.note("%s of %s, which no volume is", rpc, id)
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if v.Targets[at] == nil {
		d.ledger.note("%s of %s, which is not published at %s", rpc, id, at)
		for _, o := range d.State().Volumes {
			if o.Targets[at] != nil {
				return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s at %s, where %s is", rpc, id, at, o.ID)
			}
		}
	}
	d.ledger.change(id, func(v *Volume) {
		if p := v.Targets[at]; p != nil {
			p.Done, p.Undoing = false, true
		}
	})
	if err := d.mounts.unpublish(id, at, d.within(ctx)); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
