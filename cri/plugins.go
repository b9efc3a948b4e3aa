package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
)

// NRI plugins are called here. All of it costs a look at a counter as long as there is no plugin.
//
// A plugin may ask for changes of other containers in answer to any event. They are made when the lock of the event's own container
// has been given back: two containers that wait for each other's locks would wait for ever.

// openPlugins starts them, when all pods are known.
func (s *Server) openPlugins() error {
	c := s.cfg.NRI
	if c == nil {
		return nil
	}
	cfg := *c
	cfg.Version, cfg.Log = runtimeVersion, s.log
	p, err := nri.Start(cfg, s)
	if err != nil {
		return err
	}
	s.machine.plugins.Store(p)
	s.closers = append(s.closers, p.Close)
	return nil
}

// pluginGrace is how long an update that a plugin asks for waits for a container that is busy.
const pluginGrace = 2 * time.Second

// PluginState is all pods that are ready, and the containers there are.
func (s *Server) PluginState(context.Context) ([]*api.PodSandbox, []*api.Container) {
	var pods []*api.PodSandbox
	for _, sb := range s.pods.byID.all(newestSandbox) {
		if sb.state() == sandboxReady {
			pods = append(pods, pluginPod(sb))
		}
	}
	var ctrs []*api.Container
	for _, c := range s.ctrs.byID.all(newestContainer) {
		if c.record().State != containerCreating {
			ctrs = append(ctrs, s.ctrs.pluginContainer(c, nil))
		}
	}
	return pods, ctrs
}

// PluginUpdate makes the changes that plugins ask for, each as far as it can.
func (s *Server) PluginUpdate(ctx context.Context, updates []*api.ContainerUpdate) []*api.ContainerUpdate {
	return s.ctrs.applyUpdates(ctx, updates)
}

// evictGrace is for containers whose pod does not say how long it takes to end: what Kubernetes gives them.
const evictGrace = 30 * time.Second

// graceAnnotation is how kubelet and the agent tell a runtime how many seconds a container has to end.
const graceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// PluginEvict stops containers that plugins want to have ended. Whether they are started again is up to who runs the pod. A plugin asks
// in answer to an event, and who waits for that must not wait for the end of another container too.
func (s *Server) PluginEvict(evictions []*api.ContainerEviction) {
	for _, e := range evictions {
		c, ok := s.ctrs.byID.exact(e.GetContainerId())
		if !ok {
			s.log.Warn("NRI plugin evicts a container that is not there", "id", e.GetContainerId(), "reason", e.GetReason())
			continue
		}
		s.life.start(func(ctx context.Context) {
			s.log.Warn("NRI plugin evicts a container", append(c.logAttrs(), "reason", e.GetReason())...)
			c.mu.Lock()
			c.evicted = "evicted by an NRI plugin: " + cmp.Or(e.GetReason(), "it gives no reason")
			c.mu.Unlock()
			if err := s.ctrs.stopOne(ctx, c, graceOf(c.cfg)); err != nil {
				s.log.Error("container that an NRI plugin evicts has not ended", append(c.logAttrs(), "error", err)...)
			}
		})
	}
}

func graceOf(cfg *runtimeapi.ContainerConfig) time.Duration {
	if s, err := strconv.ParseUint(cfg.GetAnnotations()[graceAnnotation], 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	return evictGrace
}

func (cs *containers) applyUpdates(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate) {
	for _, u := range updates {
		err := cs.applyUpdate(ctx, u)
		if err != nil && !u.GetIgnoreFailure() {
			cs.log.Warn("update that an NRI plugin asks for is not done", "id", u.GetContainerId(), "error", err)
			failed = append(failed, u)
		}
	}
	return failed
}

func (cs *containers) applyUpdate(ctx context.Context, u *api.ContainerUpdate) error {
	c, ok := cs.byID.exact(u.GetContainerId())
	if !ok {
		return errNotFound
	}
	res, beyond, err := nri.ToCRI(u.GetLinux().GetResources())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginGrace)
	defer cancel()
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	return cs.changeResources(ctx, c, res, beyond)
}

// pluginCall is one event that a plugin is told of, and its answer does not matter.
type pluginCall func(*adaptation.Adaptation, context.Context) error

// tell is for what has happened whether plugins like it or not.
func (m *machine) tell(ctx context.Context, what string, call pluginCall) {
	if err := m.ask(ctx, what, call); err != nil {
		m.log.Warn("NRI plugin has failed, which changes nothing", "error", err)
	}
}

// ask is for what plugins may refuse.
func (m *machine) ask(ctx context.Context, what string, call pluginCall) error {
	p := m.plugins.Load()
	if !p.Active() {
		return nil
	}
	if err := call(p.Calls(), ctx); err != nil {
		return fmt.Errorf("NRI %s: %w", what, err)
	}
	return nil
}

// hold keeps new plugins waiting, see [nri.Plugins.Hold].
func (m *machine) hold() (release func()) { return m.plugins.Load().Hold() }

// askToRun lets plugins see a sandbox before anybody else does.
func (p *pods) askToRun(ctx context.Context, sb *sandbox) error {
	return p.ask(ctx, "RunPodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod := pluginPod(sb)
		if k, err := sb.keeperOf(); err == nil {
			pod.Pid = uint32(k.Pid()) // the record has it when the sandbox is ready
		}
		return a.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod})
	})
}

// tellStopped tells once that a sandbox is stopping: its containers have ended, and it is still there.
func (p *pods) tellStopped(ctx context.Context, sb *sandbox) {
	defer p.hold()()
	sb.mu.Lock()
	told := sb.stopTold
	sb.stopTold = true
	sb.mu.Unlock()
	if told {
		return
	}
	p.tell(ctx, "StopPodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pluginPod(sb)})
	})
}

func (p *pods) tellRemoved(ctx context.Context, sb *sandbox) {
	p.tell(ctx, "RemovePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pluginPod(sb)})
	})
}

func (p *pods) askToUpdate(ctx context.Context, sb *sandbox, r *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	return p.ask(ctx, "UpdatePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		_, err := a.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod: pluginPod(sb), OverheadLinuxResources: nri.FromCRI(r.GetOverhead()), LinuxResources: nri.FromCRI(r.GetResources()),
		})
		return err
	})
}

func (p *pods) tellUpdated(ctx context.Context, sb *sandbox) {
	p.tell(ctx, "PostUpdatePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: pluginPod(sb)})
	})
}

// adjust lets plugins change the specification of a container to be. It returns what they want of others.
func (cs *containers) adjust(ctx context.Context, c *container, spec *specs.Spec) (others []*api.ContainerUpdate, err error) {
	p := cs.plugins.Load()
	if !p.Active() {
		return nil, nil
	}
	was := spec.Linux.CgroupsPath
	asked := &api.CreateContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, spec)}
	r, err := p.Calls().CreateContainer(ctx, asked)
	c.mu.Lock()
	c.announced = true // to some of them, even if others have refused
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("NRI CreateContainer: %w", err)
	}
	nri.Remove(spec, asked.GetContainer())
	err = nri.Adjust(spec, r.GetAdjust(), nri.Limits{
		OOMScoreAdjMin: cs.host.OOMScoreAdjMin, Swap: cs.host.Swap, InjectCDI: cs.cdi.inject,
		BlockIO: cs.classes.BlockIO, RDT: cs.classes.RDT, RDTReady: cs.classes.RDTReady,
	})
	if err != nil {
		return nil, err
	}
	if _, given := r.GetAdjust().GetLinux().GetResources().GetUnified()[oci.WeightFile]; cs.host.Unified && !given {
		// Else the weight that the container's own shares were made would win over a plugin's.
		oci.Weigh(spec.Linux.Resources)
	}
	if err := cs.setSysctls(c, spec); err != nil {
		return nil, err
	}
	if err := cs.noteAdjusted(c, r.GetAdjust().GetLinux().GetResources()); err != nil {
		return nil, err
	}
	if now := spec.Linux.CgroupsPath; now != was {
		// The group is killed and removed with the container.
		path := oci.KernelPath(now)
		if cs.cgroups.Exists(path) {
			return nil, fmt.Errorf("adjust container as plugins ask: cgroup %s is there already", path)
		}
		c.mu.Lock()
		c.rec.Cgroup = path
		c.mu.Unlock()
	}
	return r.GetUpdate(), nil
}

// setSysctls sets in the pod's network what of a container's sysctls belongs there. The launcher runs in the pod's network itself, and
// libcontainer takes a network that it is in for the host's.
func (cs *containers) setSysctls(c *container, spec *specs.Spec) error {
	mine := map[string]string{}
	for key, value := range spec.Linux.Sysctl {
		if strings.HasPrefix(key, "net.") || strings.HasPrefix(key, "net/") {
			mine[key] = value
			delete(spec.Linux.Sysctl, key)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	netns := c.sandbox.record().NetNS
	if netns == "" {
		return fmt.Errorf("adjust container as plugins ask: sysctls %v are those of the host's network", slices.Sorted(maps.Keys(mine)))
	}
	return ns.WithNetNSPath(netns, func(ns.NetNS) error {
		for key, value := range mine {
			if _, err := sysctl.Sysctl(key, value); err != nil {
				return fmt.Errorf("set sysctl %s: %w", key, err)
			}
		}
		return nil
	})
}

// noteAdjusted notes what plugins have made of the container's resources, for later changes to start from.
func (cs *containers) noteAdjusted(c *container, adjusted *api.LinuxResources) error {
	if adjusted == nil {
		return nil
	}
	merged := &runtimeapi.LinuxContainerResources{}
	if err := decode(c.record().Resources, merged); err != nil {
		return err
	}
	mergeResources(merged, nri.Plain(adjusted))
	raw, err := encode(merged)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rec.Resources = raw
	return nil
}

func (cs *containers) tellCreated(ctx context.Context, c *container) {
	cs.tell(ctx, "PostCreateContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
	})
}

// tellNotCreated takes back what plugins were told of a container that did not come to be after all.
func (cs *containers) tellNotCreated(ctx context.Context, c *container) {
	c.mu.RLock()
	announced := c.announced
	c.mu.RUnlock()
	if !announced {
		return
	}
	cs.tell(ctx, "StopContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		_, err := a.StopContainer(ctx, &api.StopContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
		return err
	})
	cs.tellGone(ctx, c)
}

func (cs *containers) askToStart(ctx context.Context, c *container) error {
	return cs.ask(ctx, "StartContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.StartContainer(ctx, &api.StartContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
	})
}

func (cs *containers) tellStarted(ctx context.Context, c *container) {
	cs.tell(ctx, "PostStartContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
	})
}

// tellExited tells that a container has ended, however it did. Nobody waits for the plugins but who removes the container.
func (cs *containers) tellExited(c *container) {
	if !cs.plugins.Load().Active() {
		return
	}
	told := make(chan struct{})
	c.mu.Lock()
	c.exitTold = told
	c.mu.Unlock()
	began := cs.life.start(func(ctx context.Context) {
		var others []*api.ContainerUpdate
		func() {
			defer close(told)
			defer cs.hold()()
			cs.tell(ctx, "StopContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
				r, err := a.StopContainer(ctx, &api.StopContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
				others = r.GetUpdate()
				return err
			})
		}()
		cs.applyUpdates(ctx, others)
	})
	if !began {
		close(told)
	}
}

// waitTold waits until plugins have heard of the end of a container.
func (c *container) waitTold(ctx context.Context) {
	c.mu.RLock()
	told := c.exitTold
	c.mu.RUnlock()
	if told == nil {
		return
	}
	select {
	case <-told:
	case <-ctx.Done():
	}
}

func (cs *containers) tellGone(ctx context.Context, c *container) {
	cs.tell(ctx, "RemoveContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
	})
}

// askToChange lets plugins see new resources of a container. It returns what they make of them, and what they want of others.
func (cs *containers) askToChange(ctx context.Context, c *container, want *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, nri.Beyond, []*api.ContainerUpdate, error) {
	p := cs.plugins.Load()
	if !p.Active() {
		return want, nri.Beyond{}, nil, nil
	}
	r, err := p.Calls().UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil), LinuxResources: nri.FromCRI(want),
	})
	if err != nil {
		return nil, nri.Beyond{}, nil, fmt.Errorf("NRI UpdateContainer: %w", err)
	}
	var beyond nri.Beyond
	var others []*api.ContainerUpdate
	for _, u := range r.GetUpdate() {
		if u.GetContainerId() != c.id {
			others = append(others, u)
			continue
		}
		adj := want.GetOomScoreAdj() // which plugins do not see
		if want, beyond, err = nri.ToCRI(u.GetLinux().GetResources()); err != nil {
			return nil, beyond, nil, err
		}
		want.OomScoreAdj = adj
	}
	return want, beyond, others, nil
}

func (cs *containers) tellChanged(ctx context.Context, c *container) {
	cs.tell(ctx, "PostUpdateContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pluginPod(c.sandbox), Container: cs.pluginContainer(c, nil)})
	})
}

// pluginPod is a sandbox as plugins know it.
func pluginPod(sb *sandbox) *api.PodSandbox {
	rec, meta, linux := sb.record(), sb.cfg.GetMetadata(), sb.cfg.GetLinux()
	overhead, resources := linux.GetOverhead(), linux.GetResources()
	if o, r, ok := updatedResources(rec); ok {
		overhead, resources = o, r
	}
	out := &api.PodSandbox{
		Id: sb.id, Name: meta.GetName(), Uid: meta.GetUid(), Namespace: meta.GetNamespace(), Labels: sb.cfg.GetLabels(), Annotations: sb.cfg.GetAnnotations(),
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

// pluginContainer is a container as plugins know it. A nil specification is read.
func (cs *containers) pluginContainer(c *container, spec *specs.Spec) *api.Container {
	rec := c.record()
	out := &api.Container{
		Id: c.id, PodSandboxId: c.sandbox.id, Name: c.cfg.GetMetadata().GetName(), State: pluginStates[rec.State], Labels: c.cfg.GetLabels(),
		Pid: uint32(max(rec.Pid, 0)), CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, FinishedAt: rec.FinishedAt, ExitCode: rec.ExitCode,
		StatusReason: rec.Reason, StatusMessage: rec.Message, Image: &api.Image{Name: rec.ImageName, ConfigDigest: rec.ImageID},
	}
	if _, digest, ok := strings.Cut(rec.ImageRef, "@"); ok {
		out.Image.Digest = digest
	}
	for _, d := range c.cfg.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	var err error
	if spec == nil {
		spec, err = readSpec(cs.paths.spec(c.id))
	}
	asked := &runtimeapi.LinuxContainerResources{}
	if err == nil {
		err = decode(rec.Resources, asked)
	}
	if err == nil {
		err = nri.Container(out, spec, asked)
	}
	if err != nil {
		cs.log.Debug("specification is not told to plugins", append(c.logAttrs(), "error", err)...)
	}
	// Those of the specification, which other plugins may have changed, over those that it was made from.
	all := maps.Clone(c.cfg.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, out.Annotations)
	out.Annotations = all
	return out
}

var pluginStates = map[containerState]api.ContainerState{
	containerCreating: api.ContainerState_CONTAINER_CREATED, containerCreated: api.ContainerState_CONTAINER_CREATED, containerStarting: api.ContainerState_CONTAINER_CREATED,
	containerRunning: api.ContainerState_CONTAINER_RUNNING, containerExited: api.ContainerState_CONTAINER_STOPPED,
}

// updatedResources are those of a pod that were updated, if they were.
func updatedResources(rec sandboxRecord) (overhead, resources *runtimeapi.LinuxContainerResources, ok bool) {
	if len(rec.Overhead)+len(rec.Resources) == 0 {
		return nil, nil, false
	}
	overhead, resources = &runtimeapi.LinuxContainerResources{}, &runtimeapi.LinuxContainerResources{}
	if errors.Join(decode(rec.Overhead, overhead), decode(rec.Resources, resources)) != nil {
		return nil, nil, false
	}
	return overhead, resources, true
}
