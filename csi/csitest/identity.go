package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// GetPluginInfo implements the service.
func (svc identityService) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d := svc.driver
	return &csi.GetPluginInfoResponse{Name: d.opts.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements the service.
func (svc identityService) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	d := svc.driver
	out := &csi.GetPluginCapabilitiesResponse{}
	service := func(t csi.PluginCapability_Service_Type) {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	if !d.opts.NoController {
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE)
		service(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	}
	if len(d.opts.Topology) > 0 {
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	if d.judge.can(csi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
		}})
	}
	return out, nil
}

// Probe implements the service.
func (identityService) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// registry is the service of a plugin in the registration directory.
type registry struct {
	registerapi.UnimplementedRegistrationServer
	d *Driver
}

// GetInfo implements the service.
func (r *registry) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.d.opts.Name, Endpoint: r.d.opts.Socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements the service.
func (r *registry) NotifyRegistrationStatus(_ context.Context, in *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.d.ledger.told(in)
	return &registerapi.RegistrationStatusResponse{}, nil
}
