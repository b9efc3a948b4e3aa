package cri

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
)

// Answers share labels, annotations and the like with the configuration they come from, which nobody changes.

func (s sandboxState) cri() runtimeapi.PodSandboxState {
	if s == sandboxReady {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func sandboxStatus(sb *sandbox) *runtimeapi.PodSandboxStatus {
	rec := sb.record()
	st := &runtimeapi.PodSandboxStatus{
		Id: sb.id, Metadata: sb.cfg.GetMetadata(), State: rec.State.cri(), CreatedAt: rec.CreatedAt,
		Labels: sb.cfg.GetLabels(), Annotations: sb.cfg.GetAnnotations(), RuntimeHandler: rec.Handler,
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: sb.namespaceOptions()}},
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

// containerStatuses are of all containers of a pod, the newest first: kubelet, where it goes by events, takes the first of a name for the
// container that counts.
func containerStatuses(sb *sandbox) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range slices.Backward(sb.containers()) {
		if c.record().State != containerCreating {
			out = append(out, containerStatus(c))
		}
	}
	return out
}

func containerStatus(c *container) *runtimeapi.ContainerStatus {
	rec := c.record()
	st := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.cfg.GetMetadata(), State: rec.State.cri(),
		CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, FinishedAt: rec.FinishedAt, ExitCode: rec.ExitCode,
		Image: imageSpec(c.cfg.GetImage(), rec), ImageRef: rec.ImageRef, ImageId: rec.ImageID, Reason: rec.Reason, Message: rec.Message,
		Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(), Mounts: c.cfg.GetMounts(), LogPath: rec.LogPath,
		StopSignal: oci.SignalOf(unix.Signal(rec.StopSignal)),
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid: int64(rec.User.UID), Gid: int64(rec.User.GID),
		}},
	}
	for _, g := range rec.User.AdditionalGids {
		st.User.Linux.SupplementalGroups = append(st.User.Linux.SupplementalGroups, int64(g))
	}
	res := &runtimeapi.LinuxContainerResources{}
	if decode(rec.Resources, res) == nil && len(rec.Resources) > 0 {
		st.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return st
}

// imageSpec names the image as clients know it: by a tag, where the container was asked for by ID.
func imageSpec(asked *runtimeapi.ImageSpec, rec containerRecord) *runtimeapi.ImageSpec {
	name := rec.ImageName
	if name == "" {
		name = asked.GetImage()
	}
	return &runtimeapi.ImageSpec{
		Image: name, Annotations: asked.GetAnnotations(), UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler(),
	}
}

func (p *pods) status(r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	sb, err := p.byID.get(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxStatusResponse{
		Status: sandboxStatus(sb), ContainersStatuses: containerStatuses(sb), Timestamp: time.Now().UnixNano(),
	}
	if err := cmp.Or(sb.troubled(), sb.obscured()); err != nil {
		out.Info = map[string]string{"problem": err.Error()}
	}
	if r.GetVerbose() {
		rec := sb.record()
		info := map[string]any{"pid": rec.Pid, "cgroup": rec.Cgroup, "networkNamespace": rec.NetNS, "state": rec.State, "config": sb.cfg}
		if overhead, resources, ok := updatedResources(rec); ok {
			info["overhead"], info["resources"] = &runtimeapi.ContainerResources{Linux: overhead}, &runtimeapi.ContainerResources{Linux: resources}
		}
		text, err := verbose(info)
		if err != nil {
			return nil, err
		}
		maps.Copy(text, out.Info)
		out.Info = text
	}
	return out, nil
}

func (cs *containers) status(r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := cs.byID.get(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.record().State == containerCreating {
		return nil, fmt.Errorf("container %q: %w", r.GetContainerId(), errNotFound) // yet
	}
	out := &runtimeapi.ContainerStatusResponse{Status: containerStatus(c)}
	if r.GetVerbose() {
		rec := c.record()
		info := map[string]any{
			"sandboxID": c.sandbox.id, "pid": rec.Pid, "cgroup": rec.Cgroup, "snapshotter": cs.snaps.Name(), "layer": rec.Layer,
			"state": rec.State, "config": c.cfg,
		}
		if spec, err := os.ReadFile(cs.paths.spec(c.id)); err == nil {
			info["runtimeSpec"] = json.RawMessage(spec)
		}
		out.Info, err = verbose(info)
	}
	return out, err
}

// verbose is the extra information clients print: one JSON document.
func verbose(info map[string]any) (map[string]string, error) {
	b, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("encode information: %w", err)
	}
	return map[string]string{"info": string(b)}, nil
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (p *pods) list(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	id := ""
	if f.GetId() != "" {
		sb, err := p.byID.get(f.GetId())
		if err != nil {
			return nil
		}
		id = sb.id
	}
	var out []*runtimeapi.PodSandbox
	for _, sb := range p.byID.all(newestSandbox) {
		rec := sb.record()
		switch {
		case rec.State == sandboxCreating:
		case id != "" && sb.id != id:
		case f.GetState() != nil && f.GetState().GetState() != rec.State.cri():
		case !hasLabels(sb.cfg.GetLabels(), f.GetLabelSelector()):
		default:
			out = append(out, &runtimeapi.PodSandbox{
				Id: sb.id, Metadata: sb.cfg.GetMetadata(), State: rec.State.cri(), CreatedAt: rec.CreatedAt,
				Labels: sb.cfg.GetLabels(), Annotations: sb.cfg.GetAnnotations(), RuntimeHandler: rec.Handler,
			})
		}
	}
	return out
}

func newestSandbox(a, b *sandbox) int {
	switch x, y := a.record().CreatedAt, b.record().CreatedAt; {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}

func (cs *containers) list(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range cs.match(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		rec := c.record()
		if rec.State == containerCreating || f.GetState() != nil && f.GetState().GetState() != rec.State.cri() {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.cfg.GetMetadata(), Image: c.cfg.GetImage(), ImageRef: rec.ImageID,
			ImageId: rec.ImageID, State: rec.State.cri(), CreatedAt: rec.CreatedAt, Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(),
		})
	}
	return out
}

// match finds containers by what every filter has: ID, sandbox (both may be prefixes) and labels.
func (cs *containers) match(id, sandboxID string, labels map[string]string) []*container {
	if id != "" {
		c, err := cs.byID.get(id)
		if err != nil {
			return nil
		}
		id = c.id
	}
	if sandboxID != "" {
		sb, err := cs.pods.byID.get(sandboxID)
		if err != nil {
			return nil
		}
		sandboxID = sb.id
	}
	var out []*container
	for _, c := range cs.byID.all(newestContainer) {
		if (id == "" || c.id == id) && (sandboxID == "" || c.sandbox.id == sandboxID) && hasLabels(c.cfg.GetLabels(), labels) {
			out = append(out, c)
		}
	}
	return out
}
