package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// situation is what a view comes to: what of the pod there is counts, and how far it is.
type situation struct {
	view      *View
	sandboxOK bool
	trigger   *Container // whose exit has sent all containers of the pod back to the start; nil: none
	round     uint32     // how often that was
}

func newSituation(v *View) *situation {
	s := &situation{view: v, sandboxOK: v.Seen.ready(v.Pod.Spec.HostNetwork)}
	s.trigger, s.round = trigger(v)
	return s
}

// fate is what is to become of a container.
type fate int

const (
	keeps  fate = iota // it runs, or something is being done about it
	starts             // it is to be started
	ends               // it has ended for good
)

func (s *situation) grace() time.Duration { return spec.Grace(s.view.Pod) }

// past says whether a container is from before all were sent back.
func (s *situation) past(c *Container) bool {
	return s.trigger != nil && roundOf(c) <= roundOf(s.trigger)
}

func (s *situation) inSandbox(c *Container) bool {
	return s.sandboxOK && c.Sandbox == s.view.Seen.Sandbox().GetId() && !s.past(c)
}

// exitCode is that of a container that will not run any further; ok is false while it may.
func (s *situation) exitCode(c *Container) (code int32, ok bool) {
	switch c.GetState() {
	case Exited:
		return c.GetExitCode(), true
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return 137, true
	case Created:
		if _, no := s.view.Refused[c.GetId()]; no {
			return 128, true
		}
	}
	return 0, false
}

// fate of a container of the pod. One whose sandbox is gone has ended, even if it was never started.
func (s *situation) fate(c *corev1.Container, init bool) fate {
	now := s.view.Seen.Latest(c.Name)
	if now == nil || s.past(now) {
		return starts
	}
	code, over := s.exitCode(now)
	switch {
	case !over && now.GetState() == Running && s.inSandbox(now):
		return keeps
	case !over && now.GetState() == Running:
		// It is to be killed with its sandbox, which is no success.
		code = 137
	case !over:
		return starts
	}
	if status.Restarts(s.view.Pod, c, init, code) {
		return starts
	}
	return ends
}

// complete says whether the pod is over: every container has ended for good, or an init container has failed for good.
func (s *situation) complete() bool {
	all, any := true, false
	for i := range s.view.Pod.Spec.Containers {
		f := s.fate(&s.view.Pod.Spec.Containers[i], false)
		all, any = all && f == ends, any || f == keeps
	}
	return all || !any && s.initFailed()
}

func (s *situation) initFailed() bool {
	for i := range s.view.Pod.Spec.InitContainers {
		c := &s.view.Pod.Spec.InitContainers[i]
		now := s.view.Seen.Latest(c.Name)
		if now == nil || s.past(now) || status.IsSidecar(c) {
			continue
		}
		if code, over := s.exitCode(now); over && code != 0 && !status.Restarts(s.view.Pod, c, true, code) {
			return true
		}
	}
	return false
}

// lastBegun is the index behind the init containers that are over with in this sandbox, because something behind them
// has begun.
func (s *situation) lastBegun() int {
	n := len(s.view.Pod.Spec.InitContainers)
	for i := range s.view.Pod.Spec.Containers {
		if c := s.view.Seen.Latest(s.view.Pod.Spec.Containers[i].Name); c != nil && s.inSandbox(c) {
			return n
		}
	}
	for i := n - 1; i >= 0; i-- {
		if c := s.view.Seen.Latest(s.view.Pod.Spec.InitContainers[i].Name); c != nil && s.inSandbox(c) {
			return i
		}
	}
	return 0
}

// target is the container of that name that runs.
func (s *situation) target(name string) *Container {
	if now := s.view.Seen.Latest(name); now != nil && now.GetState() == Running && s.inSandbox(now) {
		return now
	}
	return nil
}

func (s *situation) statusesOf(name string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range s.view.Seen.Containers[name] {
		out = append(out, c.ContainerStatus)
	}
	return out
}

func (s *situation) holds(sandbox string) bool {
	for _, list := range s.view.Seen.Containers {
		for i := range list {
			if list[i].Sandbox == sandbox {
				return true
			}
		}
	}
	return false
}
