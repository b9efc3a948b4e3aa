package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/answer"
	"github.com/berth-node/berth/cri/oci"
)

// nodeCalls are the calls about the runtime as a whole.
type nodeCalls struct{ core *core }

// Version says which runtime this is.
func (n nodeCalls) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: "0.1.0", RuntimeName: "berth", RuntimeVersion: runtimeVersion, RuntimeApiVersion: "v1",
	}, nil
}

// Status says whether sandboxes can be run.
func (n nodeCalls) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := n.core.host.Net.Status(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	if err := n.core.db.Trouble(); err != nil {
		ready.Status, ready.Reason = false, "RecordsNotWritable"
		ready.Message = fmt.Sprintf("what runs goes on, but nothing new can be begun: write %s: %v", n.core.host.Paths.DB(), err)
	}
	out := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready, network}},
		RuntimeHandlers: n.core.host.RuntimeHandlers(ctx),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if !r.GetVerbose() {
		return out, nil
	}
	var err error
	out.Info, err = answer.Verbose(map[string]any{
		"root": n.core.cfg.RootDir, "run": n.core.cfg.RunDir, "snapshotter": n.core.host.Snaps.Name(), "podCIDR": n.core.cfg.PodCIDR, "bridge": n.core.cfg.BridgeName,
		"appArmor":    n.appArmor(ctx),
		"unreadable":  n.core.pods.Quarantine.Told(),
		"lostRecords": n.core.db.Lost(),
		"adopted":     n.core.adopted,
	})
	return out, asStatus(err)
}

// RuntimeConfig says which cgroup driver is in use.
func (n nodeCalls) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if n.core.cfg.CgroupDriver == cgroups.DriverSystemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig takes note of nothing: the network's addresses are a flag of the server.
func (n nodeCalls) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// Events calls fn with every container event, in order, until ctx ends. A subscriber that is too far behind is let go
// with an error, and has to list everything again.
func (n nodeCalls) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	return n.core.hub.Subscribe(ctx, func(e *runtimeapi.ContainerEventResponse) error {
		fn(e)
		return nil
	})
}

// GetContainerEvents is Events for clients on a socket.
func (n nodeCalls) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	return asStatus(n.core.hub.Subscribe(stream.Context(), stream.Send))
}

// appArmor says what the profile RuntimeDefault means here.
func (n nodeCalls) appArmor(ctx context.Context) string {
	if !n.core.host.Host.AppArmor {
		return "not in this kernel"
	}
	if err := n.core.host.Armor.Ensure(ctx); err != nil {
		return err.Error()
	}
	return oci.AppArmorDefault
}

const runtimeVersion = "0.1.0"
