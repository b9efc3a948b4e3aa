package local

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// modify takes the parameters that can be changed of a volume that is there.
func modify(trim *string, mutable map[string]string) error {
	for name, value := range mutable {
		if name != parameterTrim {
			return invalid("mutable_parameters", "%q cannot be changed: only %s can", shorten(name), parameterTrim)
		}
		if !slices.Contains([]string{trimUnstage, trimMount, trimNever}, value) {
			return invalid("mutable_parameters", "%s %q: must be unstage, mount or never", name, shorten(value))
		}
		*trim = value
	}
	return nil
}

func (c controller) ControllerModifyVolume(ctx context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, free, err := c.d.records.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	if err := modify(&v.Trim, r.GetMutableParameters()); err != nil {
		return nil, err
	}
	if err := c.d.records.volumes.Put(v); err != nil {
		return nil, failed("modify volume", err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (c controller) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil {
		return nil, invalid("capacity_range", "must be given")
	}
	sizes, err := readRange(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	v, free, err := c.d.records.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	if one := r.GetVolumeCapability(); one != nil {
		if err := fits(v, "volume_capability", one); err != nil {
			return nil, err
		}
	}
	if !sizes.has(v.Capacity) || sizes.least == 0 {
		if err := c.d.maker.expand(ctx, &v, sizes); err != nil {
			return nil, err
		}
	}
	if err := c.d.backends.growStorage(ctx, v); err != nil {
		return nil, failed("expand volume", err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Capacity, NodeExpansionRequired: v.Type != typeDirectory}, nil
}

func (n node) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetVolumePath() == "" {
		return nil, invalid("volume_path", "must be given")
	}
	sizes, err := readRange(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	v, free, err := n.d.records.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	u, err := n.d.records.usedAt(v.ID, r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if v.Capacity < sizes.least {
		return nil, status.Errorf(codes.OutOfRange, "capacity_range: the volume has %d bytes: ControllerExpandVolume comes first", v.Capacity)
	}
	if err := n.d.stager.growMounted(ctx, &v, u, r.GetSecrets()); err != nil {
		return nil, failed("expand file system", err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}
