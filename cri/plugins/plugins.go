// Package plugins tells NRI plugins of pods and containers, and asks them. All of it costs a look at a counter as long
// as there is no plugin.
//
// A plugin may ask for changes of other containers in answer to any event. Who calls makes them when the lock of the
// event's own container has been given back: two containers that wait for each other's locks would wait for ever.
package plugins

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/nri"
)

// Plugins are those that are connected. There are none before [Plugins.Start].
type Plugins struct {
	log     *slog.Logger
	started atomic.Pointer[nri.Plugins] // nil before all pods are known, and where there are none
}

// New returns no plugins.
func New(log *slog.Logger) *Plugins { return &Plugins{log: log} }

// Start lets plugins come, which are told of all there is. It is called when all pods are known.
func (p *Plugins) Start(c nri.Config, rt nri.Runtime) (end func() error, err error) {
	s, err := nri.Start(c, rt)
	if err != nil {
		return nil, err
	}
	p.started.Store(s)
	return s.Close, nil
}

// Active says whether there is a plugin.
func (p *Plugins) Active() bool { return p.started.Load().Active() }

// Hold keeps new plugins waiting, see [nri.Plugins.Hold].
func (p *Plugins) Hold() (release func()) { return p.started.Load().Hold() }

// Pod is a pod as plugins know it, made only when there is a plugin.
type Pod func() *api.PodSandbox

// Container is a container as plugins know it, made only when there is a plugin.
type Container func() (*api.PodSandbox, *api.Container)

// call is one event that plugins are told of.
type call func(*adaptation.Adaptation, context.Context) error

// tell is for what has happened whether plugins like it or not.
func (p *Plugins) tell(ctx context.Context, what string, call call) {
	if err := p.ask(ctx, what, call); err != nil {
		p.log.Warn("NRI plugin has failed, which changes nothing", "error", err)
	}
}

// ask is for what plugins may refuse.
func (p *Plugins) ask(ctx context.Context, what string, call call) error {
	s := p.started.Load()
	if !s.Active() {
		return nil
	}
	if err := call(s.Calls(), ctx); err != nil {
		return fmt.Errorf("NRI %s: %w", what, err)
	}
	return nil
}

// RunPod lets plugins see a sandbox before anybody else does.
func (p *Plugins) RunPod(ctx context.Context, pod Pod) error {
	return p.ask(ctx, "RunPodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod()})
	})
}

// PodStopped tells that a sandbox is stopping: its containers have ended, and it is still there.
func (p *Plugins) PodStopped(ctx context.Context, pod Pod) {
	p.tell(ctx, "StopPodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod()})
	})
}

// PodRemoved tells that a sandbox goes.
func (p *Plugins) PodRemoved(ctx context.Context, pod Pod) {
	p.tell(ctx, "RemovePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod()})
	})
}

// UpdatePod lets plugins see what a pod as a whole is to have.
func (p *Plugins) UpdatePod(
	ctx context.Context, pod Pod, overhead, resources *runtimeapi.LinuxContainerResources,
) error {
	return p.ask(ctx, "UpdatePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		_, err := a.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod: pod(), OverheadLinuxResources: nri.FromCRI(overhead), LinuxResources: nri.FromCRI(resources),
		})
		return err
	})
}

// PodUpdated tells that it has it now.
func (p *Plugins) PodUpdated(ctx context.Context, pod Pod) {
	p.tell(ctx, "PostUpdatePodSandbox", func(a *adaptation.Adaptation, ctx context.Context) error {
		return a.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: pod()})
	})
}

// CreateContainer asks plugins what they want of a container to be. It is called only where there is one.
func (p *Plugins) CreateContainer(
	ctx context.Context, pod *api.PodSandbox, ctr *api.Container,
) (*api.CreateContainerResponse, error) {
	r, err := p.started.Load().Calls().CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: ctr})
	if err != nil {
		return nil, fmt.Errorf("NRI CreateContainer: %w", err)
	}
	return r, nil
}

// Created tells that a container has come to be.
func (p *Plugins) Created(ctx context.Context, of Container) {
	p.tell(ctx, "PostCreateContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		return a.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: ctr})
	})
}

// StartContainer asks whether a container may start.
func (p *Plugins) StartContainer(ctx context.Context, of Container) error {
	return p.ask(ctx, "StartContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		return a.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: ctr})
	})
}

// Started tells that a container runs.
func (p *Plugins) Started(ctx context.Context, of Container) {
	p.tell(ctx, "PostStartContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		return a.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: ctr})
	})
}

// Stopped tells that a container has ended, however it did. It returns what plugins want of others.
func (p *Plugins) Stopped(ctx context.Context, of Container) (others []*api.ContainerUpdate) {
	p.tell(ctx, "StopContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		r, err := a.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: ctr})
		others = r.GetUpdate()
		return err
	})
	return others
}

// Removed tells that a container goes.
func (p *Plugins) Removed(ctx context.Context, of Container) {
	p.tell(ctx, "RemoveContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		return a.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: ctr})
	})
}

// Change is what is to become of a container's resources.
type Change struct {
	Resources *runtimeapi.LinuxContainerResources
	Beyond    nri.Beyond             // what the CRI has no fields for
	Others    []*api.ContainerUpdate // of other containers
}

// UpdateContainer lets plugins see new resources of a container. It returns what they make of them, and what they want
// of others.
func (p *Plugins) UpdateContainer(
	ctx context.Context, of Container, want *runtimeapi.LinuxContainerResources,
) (Change, error) {
	s := p.started.Load()
	if !s.Active() {
		return Change{Resources: want}, nil
	}
	pod, ctr := of()
	r, err := s.Calls().UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: pod, Container: ctr, LinuxResources: nri.FromCRI(want),
	})
	if err != nil {
		return Change{}, fmt.Errorf("NRI UpdateContainer: %w", err)
	}
	c := Change{Resources: want}
	for _, u := range r.GetUpdate() {
		if u.GetContainerId() != ctr.GetId() {
			c.Others = append(c.Others, u)
			continue
		}
		adj := c.Resources.GetOomScoreAdj() // which plugins do not see
		if c.Resources, c.Beyond, err = nri.ToCRI(u.GetLinux().GetResources()); err != nil {
			return Change{}, err
		}
		c.Resources.OomScoreAdj = adj
	}
	return c, nil
}

// Changed tells that a container has its new resources.
func (p *Plugins) Changed(ctx context.Context, of Container) {
	p.tell(ctx, "PostUpdateContainer", func(a *adaptation.Adaptation, ctx context.Context) error {
		pod, ctr := of()
		return a.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: ctr})
	})
}
