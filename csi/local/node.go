package local

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
)

// node is the service that mounts volumes.
type node struct {
	csi.UnimplementedNodeServer
	d *Driver
}

func (node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: t},
		}})
	}
	return out, nil
}

func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.d.place.node, MaxVolumesPerNode: n.d.cfg.MaxVolumes, AccessibleTopology: n.d.place.topology()}, nil
}

func (n node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := placed("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if r.GetVolumeCapability() == nil {
		return nil, invalid("volume_capability", "must be given")
	}
	if err := n.d.publisher.outside("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v, free, err := n.d.records.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	if err := fits(v, "volume_capability", r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	m := r.GetVolumeCapability().GetMount()
	return &csi.NodeStageVolumeResponse{}, n.d.stager.stage(ctx, v, staging{
		path: r.GetStagingTargetPath(), how: record.Mount{Flags: m.GetMountFlags(), Group: m.GetVolumeMountGroup()}, secrets: r.GetSecrets(),
	})
}

func (n node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := placed("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v, free, err := n.d.records.taken(ctx, r.GetVolumeId())
	if status.Code(err) == codes.NotFound && isFree(r.GetStagingTargetPath()) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer free()
	return &csi.NodeUnstageVolumeResponse{}, n.d.stager.unstage(ctx, v, r.GetStagingTargetPath())
}

func (n node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := placed("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	if r.GetVolumeCapability() == nil {
		return nil, invalid("volume_capability", "must be given")
	}
	if err := n.d.publisher.outside("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	if r.GetVolumeContext()[ephemeralKey] == "true" {
		return &csi.NodePublishVolumeResponse{}, n.d.inlines.publishInline(ctx, r)
	}
	v, free, err := n.d.records.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer free()
	if err := fits(v, "volume_capability", r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if p := r.GetStagingTargetPath(); p != "" {
		if err := placed("staging_target_path", p); err != nil {
			return nil, err
		}
	}
	return &csi.NodePublishVolumeResponse{}, n.d.publisher.publish(ctx, v, r)
}

func (n node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := placed("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	if done, err := n.d.inlines.unpublishInline(ctx, r.GetVolumeId(), r.GetTargetPath()); err != nil || done {
		return &csi.NodeUnpublishVolumeResponse{}, err
	}
	v, free, err := n.d.records.taken(ctx, r.GetVolumeId())
	if status.Code(err) == codes.NotFound && isFree(r.GetTargetPath()) {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer free()
	return &csi.NodeUnpublishVolumeResponse{}, n.d.publisher.unpublish(ctx, v, r.GetTargetPath())
}
