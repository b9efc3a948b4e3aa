package csitest

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controllerCalls leaves out PUBLISH_UNPUBLISH_VOLUME, since storage of this machine is attached to it.
func controllerCalls() []csi.ControllerServiceCapability_RPC_Type {
	return []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	}
}

// ControllerGetCapabilities implements the service.
func (svc controllerService) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	d := svc.driver
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range d.opts.Controller {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// offers checks that a call is one that the driver says it has.
func (j judge) offers(rpc, about string, call csi.ControllerServiceCapability_RPC_Type) error {
	if !j.controls(call) {
		return j.wrong(codes.Unimplemented, "%s of %s without the capability", rpc, about)
	}
	return nil
}

// CreateVolume implements the service.
func (svc controllerService) CreateVolume(ctx context.Context, in *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d := svc.driver
	const rpc = "CreateVolume"
	name := in.GetName()
	if err := d.judge.offers(rpc, name, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return nil, err
	}
	if name == "" || len(in.GetVolumeCapabilities()) == 0 {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %q without a name or a capability", rpc, name)
	}
	if d.opts.Capacity > 0 {
		d.store.room.Lock()
		defer d.store.room.Unlock()
	}
	v, from, err := svc.wanted(in)
	if err != nil {
		return nil, err
	}
	if old := d.ledger.named(name); old != nil {
		if old.Arguments != v.Arguments || old.Bytes < v.Bytes {
			return nil, d.judge.wrong(codes.AlreadyExists, "%s of %s with other arguments than before: %s, not %s", rpc, name, v.Arguments, old.Arguments)
		}
		return svc.created(old, in), nil
	}
	if err := d.store.make(v, from); err != nil {
		return nil, internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	d.ledger.update(func(s *State) { s.Volumes[v.ID] = v })
	return svc.created(v, in), nil
}

// wanted is the volume that a call asks for, and where its content is to come from.
func (svc controllerService) wanted(in *csi.CreateVolumeRequest) (v *Volume, from string, err error) {
	d := svc.driver
	const rpc = "CreateVolume"
	name, size := in.GetName(), in.GetCapacityRange()
	v = &Volume{ID: "v-" + name, Name: name, Bytes: size.GetRequiredBytes(), Parameters: in.GetParameters(), Mutable: in.GetMutableParameters()}
	v.Context = map[string]string{"made-for": name}
	if n := d.opts.ContextBytes; n > 0 {
		v.Context["padding"] = strings.Repeat("x", n)
	}
	if v.Bytes == 0 {
		v.Bytes = defaultBytes
		if limit := size.GetLimitBytes(); limit > 0 {
			v.Bytes = min(v.Bytes, limit)
		}
	}
	if limit := size.GetLimitBytes(); limit > 0 && limit < v.Bytes || size.GetRequiredBytes() < 0 {
		return nil, "", d.judge.wrong(codes.InvalidArgument, "%s of %s: a range of %v", rpc, name, size)
	}
	if svc.free() < v.Bytes && d.ledger.named(name) == nil {
		return nil, "", status.Errorf(codes.OutOfRange, "there is no room for %d bytes", v.Bytes)
	}
	var caps []string
	for _, c := range in.GetVolumeCapabilities() {
		v.Block = v.Block || c.GetBlock() != nil
		caps = append(caps, capability(c))
	}
	if !svc.reachable(in.GetAccessibilityRequirements()) {
		return nil, "", status.Error(codes.ResourceExhausted, "no volume can be there")
	}
	source := in.GetVolumeContentSource()
	v.Source = source.GetSnapshot().GetSnapshotId() + source.GetVolume().GetVolumeId()
	v.Arguments = arguments(caps, in.GetParameters(), v.Mutable, v.Source)
	if v.Source == "" {
		return v, "", nil
	}
	home, bytes := "", int64(0)
	if o := d.ledger.volume(source.GetVolume().GetVolumeId()); o != nil {
		home, bytes = o.ID, o.Bytes
	} else if s := d.State().Snapshots[source.GetSnapshot().GetSnapshotId()]; s != nil {
		home, bytes = s.ID, s.Bytes
	} else {
		return nil, "", status.Errorf(codes.NotFound, "there is no %s", v.Source)
	}
	if in.GetCapacityRange().GetRequiredBytes() == 0 {
		v.Bytes = bytes
	}
	if v.Bytes < bytes {
		return nil, "", status.Errorf(codes.OutOfRange, "%s has %d bytes", v.Source, bytes)
	}
	from = d.Data(home)
	if v.Block || d.opts.Kind == Loop {
		from = d.store.image(home)
	}
	return v, from, nil
}

func (svc controllerService) reachable(r *csi.TopologyRequirement) bool {
	d := svc.driver
	if len(d.opts.Topology) == 0 || len(r.GetRequisite()) == 0 {
		return true
	}
	return slices.ContainsFunc(r.GetRequisite(), func(t *csi.Topology) bool { return maps.Equal(t.GetSegments(), d.opts.Topology) })
}

func (svc controllerService) created(v *Volume, in *csi.CreateVolumeRequest) *csi.CreateVolumeResponse {
	d := svc.driver
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Bytes, VolumeContext: v.Context, ContentSource: in.GetVolumeContentSource()}
	if len(d.opts.Topology) > 0 {
		out.AccessibleTopology = []*csi.Topology{{Segments: d.opts.Topology}}
	}
	return &csi.CreateVolumeResponse{Volume: out}
}

func (l *ledger) named(name string) *Volume {
	for _, v := range l.state().Volumes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// free is how many bytes new volumes may have.
func (svc controllerService) free() int64 {
	d := svc.driver
	if d.opts.Capacity == 0 {
		return 1 << 50
	}
	left := d.opts.Capacity
	for _, v := range d.State().Volumes {
		left -= v.Bytes
	}
	return max(0, left)
}

// DeleteVolume implements the service.
func (svc controllerService) DeleteVolume(ctx context.Context, in *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d := svc.driver
	const rpc = "DeleteVolume"
	id := in.GetVolumeId()
	if err := d.judge.offers(rpc, id, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return nil, err
	}
	v := d.ledger.volume(id)
	if v == nil {
		d.ledger.note("%s of %s, which no volume is", rpc, id)
		return &csi.DeleteVolumeResponse{}, nil
	}
	if v.Stage != nil || len(v.Targets) > 0 || len(v.Attached) > 0 {
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s, which is in use", rpc, id)
	}
	if err := os.RemoveAll(d.store.home(id)); err != nil {
		return nil, internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	d.ledger.update(func(s *State) { delete(s.Volumes, id) })
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements the service.
func (svc controllerService) ControllerPublishVolume(_ context.Context, in *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d := svc.driver
	const rpc = "ControllerPublishVolume"
	id, node := in.GetVolumeId(), in.GetNodeId()
	if err := d.judge.offers(rpc, id, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME); err != nil {
		return nil, err
	}
	if _, err := d.known(id, rpc); err != nil {
		return nil, err
	}
	if node != d.opts.NodeID {
		return nil, d.judge.wrong(codes.NotFound, "%s of %s to %q, which no node is", rpc, id, node)
	}
	if err := d.judge.allowed(rpc, id, in.GetVolumeCapability()); err != nil {
		return nil, err
	}
	publish := map[string]string{"device": "csitest-" + id}
	d.ledger.change(id, func(v *Volume) { v.Attached[node] = publish })
	return &csi.ControllerPublishVolumeResponse{PublishContext: publish}, nil
}

// ControllerUnpublishVolume implements the service.
func (svc controllerService) ControllerUnpublishVolume(_ context.Context, in *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d := svc.driver
	const rpc = "ControllerUnpublishVolume"
	id := in.GetVolumeId()
	if err := d.judge.offers(rpc, id, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME); err != nil {
		return nil, err
	}
	v := d.ledger.volume(id)
	if v == nil {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if v.Stage != nil || len(v.Targets) > 0 {
		return nil, d.judge.wrong(codes.FailedPrecondition, "%s of %s, which the node uses", rpc, id)
	}
	d.ledger.change(id, func(v *Volume) { delete(v.Attached, d.opts.NodeID) })
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ControllerExpandVolume implements the service.
func (svc controllerService) ControllerExpandVolume(ctx context.Context, in *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d := svc.driver
	const rpc = "ControllerExpandVolume"
	id := in.GetVolumeId()
	if err := d.judge.offers(rpc, id, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME); err != nil {
		return nil, err
	}
	v := d.ledger.volume(id)
	if v == nil {
		return nil, d.judge.wrong(codes.NotFound, "%s of %s, which no volume is", rpc, id)
	}
	want := in.GetCapacityRange().GetRequiredBytes()
	if want <= 0 {
		return nil, d.judge.wrong(codes.InvalidArgument, "%s of %s to %d bytes", rpc, id, want)
	}
	if more := want - v.Bytes; more > svc.free() {
		return nil, status.Errorf(codes.OutOfRange, "there is no room for %d bytes", more)
	}
	if want > v.Bytes {
		if err := d.mounts.enlarge(v, want); err != nil {
			return nil, internal(err)
		}
	}
	if err := d.happen(ctx, Within); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: max(want, v.Bytes), NodeExpansionRequired: d.judge.can(csi.NodeServiceCapability_RPC_EXPAND_VOLUME),
	}, nil
}

// GetCapacity implements the service.
func (svc controllerService) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d := svc.driver
	if err := d.judge.offers("GetCapacity", "", csi.ControllerServiceCapability_RPC_GET_CAPACITY); err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{AvailableCapacity: svc.free()}, nil
}

// ValidateVolumeCapabilities implements the service.
func (svc controllerService) ValidateVolumeCapabilities(_ context.Context, in *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	d := svc.driver
	if d.ledger.volume(in.GetVolumeId()) == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", in.GetVolumeId())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: in.GetVolumeContext(), VolumeCapabilities: in.GetVolumeCapabilities(), Parameters: in.GetParameters(),
	}}, nil
}

// ListVolumes implements the service.
func (svc controllerService) ListVolumes(_ context.Context, in *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d := svc.driver
	all := d.State().Volumes
	from, to, next, err := page(in.GetStartingToken(), in.GetMaxEntries(), len(all))
	if err != nil {
		return nil, err
	}
	out := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range slices.Sorted(maps.Keys(all))[from:to] {
		v := &csi.Volume{VolumeId: id, CapacityBytes: all[id].Bytes, VolumeContext: all[id].Context}
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{Volume: v})
	}
	return out, nil
}

// page is which of n entries an answer has.
func page(token string, most int32, n int) (from, to int, next string, err error) {
	if token != "" {
		from, err = strconv.Atoi(token)
		if err != nil || from < 0 || from > n {
			return 0, 0, "", status.Errorf(codes.Aborted, "%q is no token", token)
		}
	}
	to = n
	if most > 0 && from+int(most) < n {
		to = from + int(most)
		next = strconv.Itoa(to)
	}
	return from, to, next, nil
}
