package container

import (
	"cmp"
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/berth-node/berth/cri/nri"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/plugins"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// told is what plugins are told of containers.
type told struct{ host *host.Host }

// of is a container for an event.
func (t *told) of(c *Container) plugins.Container {
	return func() (*api.PodSandbox, *api.Container) { return c.Sandbox.ForPlugins(), t.pluginContainer(c, nil) }
}

// notCreated takes back what plugins were told of a container that did not come to be after all.
func (t *told) notCreated(ctx context.Context, c *Container) {
	c.mu.RLock()
	announced := c.announced
	c.mu.RUnlock()
	if !announced {
		return
	}
	t.host.Plugins.Stopped(ctx, t.of(c))
	t.host.Plugins.Removed(ctx, t.of(c))
}

// pluginContainer is a container as plugins know it. A nil specification is read.
func (t *told) pluginContainer(c *Container, spec *specs.Spec) *api.Container {
	rec := c.Record()
	out := &api.Container{
		Id: c.ID, PodSandboxId: c.Sandbox.ID, Name: c.Config.GetMetadata().GetName(), State: pluginStates[rec.State], Labels: c.Config.GetLabels(),
		Pid: uint32(max(rec.Pid, 0)), CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, FinishedAt: rec.FinishedAt, ExitCode: rec.ExitCode,
		StatusReason: rec.Reason, StatusMessage: rec.Message, Image: &api.Image{Name: rec.ImageName, ConfigDigest: rec.ImageID},
	}
	if _, digest, ok := strings.Cut(rec.ImageRef, "@"); ok {
		out.Image.Digest = digest
	}
	for _, d := range c.Config.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	var err error
	if spec == nil {
		spec, err = host.ReadSpec(t.host.Paths.Container(c.ID).Spec())
	}
	asked := &runtimeapi.LinuxContainerResources{}
	if err == nil {
		err = ledger.Decode(rec.Resources, asked)
	}
	if err == nil {
		err = nri.Container(out, spec, asked)
	}
	if err != nil {
		t.host.Log.Debug("specification is not told to plugins", append(c.LogAttrs(), "error", err)...)
	}
	// Those of the specification, which other plugins may have changed, over those that it was made from.
	all := maps.Clone(c.Config.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, out.Annotations)
	out.Annotations = all
	return out
}

var pluginStates = map[State]api.ContainerState{
	Creating: api.ContainerState_CONTAINER_CREATED, Created: api.ContainerState_CONTAINER_CREATED, Starting: api.ContainerState_CONTAINER_CREATED,
	Running: api.ContainerState_CONTAINER_RUNNING, Exited: api.ContainerState_CONTAINER_STOPPED,
}

// waitTold waits until plugins have heard of the end of a container.
func (c *Container) waitTold(ctx context.Context) {
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

// ForPlugins are the containers there are, the newest first.
func (cs *Containers) ForPlugins() []*api.Container {
	var out []*api.Container
	for _, c := range cs.Table.ByID.All(Newest) {
		if c.Record().State != Creating {
			out = append(out, cs.told.pluginContainer(c, nil))
		}
	}
	return out
}

// evictGrace is for containers whose pod does not say how long it takes to end: what Kubernetes gives them.
const evictGrace = 30 * time.Second

// GraceAnnotation is how kubelet and the agent tell a runtime how many seconds a container has to end.
const GraceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// Evict stops a container that a plugin wants to have ended, in the background. It returns false where there is none.
func (cs *Containers) Evict(id, reason string) bool {
	c, ok := cs.Table.ByID.Exact(id)
	if !ok {
		return false
	}
	cs.Stopper.tasks.Start(func(ctx context.Context) {
		cs.host.Log.Warn("NRI plugin evicts a container", append(c.LogAttrs(), "reason", reason)...)
		c.mu.Lock()
		c.evicted = "evicted by an NRI plugin: " + cmp.Or(reason, "it gives no reason")
		c.mu.Unlock()
		if err := cs.Stopper.stopOne(ctx, c, graceOf(c.Config)); err != nil {
			cs.host.Log.Error("container that an NRI plugin evicts has not ended", append(c.LogAttrs(), "error", err)...)
		}
	})
	return true
}

func graceOf(cfg *runtimeapi.ContainerConfig) time.Duration {
	if s, err := strconv.ParseUint(cfg.GetAnnotations()[GraceAnnotation], 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	return evictGrace
}
