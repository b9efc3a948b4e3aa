package local

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
)

// controller is the service that makes and removes volumes.
type controller struct {
	csi.UnimplementedControllerServer
	d *Driver
}

func (controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
		}})
	}
	return out, nil
}

func (c controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := named("name", r.GetName()); err != nil {
		return nil, err
	}
	s, err := c.d.backends.readShape(r.GetParameters(), r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if err := modify(&s.Trim, r.GetMutableParameters()); err != nil {
		return nil, err
	}
	sizes, err := readRange(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if !c.d.place.here(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "accessibility_requirements: this is node %s, which is none of those", c.d.place.node)
	}
	v := record.Volume{
		ID: idOf(volumeKind, r.GetName()), Name: r.GetName(), State: record.Making, Content: s.Content, Quota: s.Quota, Trim: s.Trim,
		Parameters: r.GetParameters(),
	}
	_, given := r.GetParameters()[parameterType]
	made, err := c.d.maker.create(ctx, v, sizes, origin{source: r.GetVolumeContentSource(), typed: given})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: c.d.place.describe(made)}, nil
}

func (c controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	free, err := c.d.records.locks.lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	if err := c.d.unused(ctx, r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := c.d.maker.removeVolume(ctx, r.GetVolumeId()); err != nil {
		return nil, failed("remove volume", err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// unused says where a volume is in use, by the records and by the kernel.
func (d *Driver) unused(ctx context.Context, id string) error {
	u, err := d.records.use(id)
	if err != nil {
		return err
	}
	at := u.Staging
	if v, err := d.records.volumes.Get(id); err == nil && at == "" {
		if at, err = d.backends.mountedAt(ctx, v); err != nil {
			return failed("find out where the volume is mounted", err)
		}
	}
	if at != "" || len(u.Targets) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume_id: the volume is in use at %s", at)
	}
	return nil
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume_capabilities", "must be given")
	}
	v, err := c.d.records.volumes.Get(r.GetVolumeId())
	if err != nil {
		return nil, notFound("volume", r.GetVolumeId(), err)
	}
	for _, one := range r.GetVolumeCapabilities() {
		if err := fits(v, "volume_capabilities", one); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
		Parameters: r.GetParameters(), MutableParameters: r.GetMutableParameters(),
	}}, nil
}

func (c controller) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	s, err := readParameters(r.GetParameters())
	if err != nil {
		return nil, err
	}
	for _, one := range r.GetVolumeCapabilities() {
		if err := checkCapability("volume_capabilities", one); err != nil {
			return nil, err
		}
		s.Block = s.Block || one.GetBlock() != nil
	}
	if err := c.d.backends.complete(&s); err != nil {
		return nil, err
	}
	if t := r.GetAccessibleTopology(); t != nil && !c.d.place.isHere(t) {
		return &csi.GetCapacityResponse{}, nil
	}
	bytes, err := c.d.space.available(ctx, s.Type, "")
	if err != nil {
		return nil, err
	}
	return capacity(bytes, s), nil
}
