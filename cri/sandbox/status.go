package sandbox

import (
	"errors"
	"slices"

	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/nri"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// beginning is forPlugins of a sandbox that is not ready yet: the record has the keeper when it is.
func (sb *Sandbox) beginning() *api.PodSandbox {
	pod := sb.ForPlugins()
	if k, err := sb.KeeperOf(); err == nil {
		pod.Pid = uint32(k.Pid())
	}
	return pod
}

// ForPlugins is a sandbox as plugins know it.
func (sb *Sandbox) ForPlugins() *api.PodSandbox {
	rec, meta, linux := sb.Record(), sb.Config.GetMetadata(), sb.Config.GetLinux()
	overhead, resources := linux.GetOverhead(), linux.GetResources()
	if o, r, ok := updatedResources(rec); ok {
		overhead, resources = o, r
	}
	out := &api.PodSandbox{
		Id: sb.ID, Name: meta.GetName(), Uid: meta.GetUid(), Namespace: meta.GetNamespace(), Labels: sb.Config.GetLabels(), Annotations: sb.Config.GetAnnotations(),
		RuntimeHandler: rec.Handler, Pid: uint32(max(rec.Pid, 0)),
		Linux: &api.LinuxPodSandbox{
			PodOverhead: nri.FromCRI(overhead), PodResources: nri.FromCRI(resources), CgroupParent: linux.GetCgroupParent(), CgroupsPath: rec.Cgroup,
		},
	}
	if rec.NetNS != "" {
		out.Linux.Namespaces = []*api.LinuxNamespace{{Type: string(specs.NetworkNamespace), Path: rec.NetNS}}
	}
	for _, ip := range rec.IPs {
		out.Ips = append(out.Ips, ip.String())
	}
	return out
}

// updatedResources are those of a pod that were updated, if they were.
func updatedResources(rec Record) (overhead, resources *runtimeapi.LinuxContainerResources, ok bool) {
	if len(rec.Overhead)+len(rec.Resources) == 0 {
		return nil, nil, false
	}
	overhead, resources = &runtimeapi.LinuxContainerResources{}, &runtimeapi.LinuxContainerResources{}
	if errors.Join(ledger.Decode(rec.Overhead, overhead), ledger.Decode(rec.Resources, resources)) != nil {
		return nil, nil, false
	}
	return overhead, resources, true
}

// Statuses are those of the sandbox and its containers.
func (sb *Sandbox) Statuses() (*runtimeapi.PodSandboxStatus, []*runtimeapi.ContainerStatus) {
	return sandboxStatus(sb), containerStatuses(sb)
}

func sandboxStatus(sb *Sandbox) *runtimeapi.PodSandboxStatus {
	rec := sb.Record()
	st := &runtimeapi.PodSandboxStatus{
		Id: sb.ID, Metadata: sb.Config.GetMetadata(), State: rec.State.CRI(), CreatedAt: rec.CreatedAt,
		Labels: sb.Config.GetLabels(), Annotations: sb.Config.GetAnnotations(), RuntimeHandler: rec.Handler,
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: sb.NamespaceOptions()}},
		Network: &runtimeapi.PodSandboxNetworkStatus{},
	}
	if st.Linux.Namespaces.Options == nil {
		st.Linux.Namespaces.Options = &runtimeapi.NamespaceOption{}
	}
	for i, ip := range rec.IPs {
		if i == 0 {
			st.Network.Ip = ip.String()
		} else {
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	return st
}

// containerStatuses are of all containers of a pod, the newest first: kubelet, where it goes by events, takes the first
// of a name for the container that counts.
func containerStatuses(sb *Sandbox) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, m := range slices.Backward(sb.Members()) {
		if st := m.Status(); st != nil {
			out = append(out, st)
		}
	}
	return out
}
