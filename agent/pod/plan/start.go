package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// errorShown is how long a pod says why a pull has failed, before it says that it waits to try again.
const errorShown = time.Second

// fate is what is to become of a container.
type fate int

const (
	keeps  fate = iota // it runs, or something is being done about it
	starts             // it is to be started
	ends               // it has ended for good
)

// exitCode is that of a container that will not run any further; ok is false while it may.
func (p *planner) exitCode(c *Container) (code int32, ok bool) {
	switch c.GetState() {
	case Exited:
		return c.GetExitCode(), true
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return 137, true
	case Created:
		if _, no := p.Refused[c.GetId()]; no {
			return 128, true
		}
	}
	return 0, false
}

// fate of a container of the pod. One whose sandbox is gone has ended, even if it was never started.
func (p *planner) fate(c *corev1.Container, init bool) fate {
	now := p.Seen.Latest(c.Name)
	if now == nil || p.past(now) {
		return starts
	}
	code, over := p.exitCode(now)
	switch {
	case !over && now.GetState() == Running && p.inSandbox(now):
		return keeps
	case !over && now.GetState() == Running:
		// It is to be killed with its sandbox, which is no success.
		code = 137
	case !over:
		return starts
	}
	if status.Restarts(p.Pod, c, init, code) {
		return starts
	}
	return ends
}

func (p *planner) inSandbox(c *Container) bool {
	return p.sandboxOK && c.Sandbox == p.Seen.Sandbox().GetId() && !p.past(c)
}

// complete says whether the pod is over: every container has ended for good, or an init container has failed for good.
func (p *planner) complete() bool {
	all, any := true, false
	for i := range p.Pod.Spec.Containers {
		f := p.fate(&p.Pod.Spec.Containers[i], false)
		all, any = all && f == ends, any || f == keeps
	}
	return all || !any && p.initFailed()
}

func (p *planner) initFailed() bool {
	for i := range p.Pod.Spec.InitContainers {
		c := &p.Pod.Spec.InitContainers[i]
		now := p.Seen.Latest(c.Name)
		if now == nil || p.past(now) || status.IsSidecar(c) {
			continue
		}
		if code, over := p.exitCode(now); over && code != 0 && !status.Restarts(p.Pod, c, true, code) {
			return true
		}
	}
	return false
}

// initialize takes the init containers one step further, and says whether the pod's own containers may start.
func (p *planner) initialize() bool {
	last := p.lastBegun()
	for i := range p.Pod.Spec.InitContainers {
		c := &p.Pod.Spec.InitContainers[i]
		now := p.Seen.Latest(c.Name)
		here := now != nil && p.inSandbox(now)
		if status.IsSidecar(c) {
			up := here && p.up(c, now)
			if !here || p.fate(c, true) == starts {
				p.start(c)
			}
			// What was begun behind a sidecar does not wait for it again when it restarts.
			if !up && i >= last {
				return false
			}
			continue
		}
		if i < last {
			continue
		}
		switch {
		case here && now.GetState() == Exited && now.GetExitCode() == 0:
			continue
		case here && now.GetState() == Running:
		default:
			p.start(c)
		}
		return false
	}
	return true
}

// lastBegun is the index behind the init containers that are over with in this sandbox, because something behind them has begun.
func (p *planner) lastBegun() int {
	n := len(p.Pod.Spec.InitContainers)
	for i := range p.Pod.Spec.Containers {
		if c := p.Seen.Latest(p.Pod.Spec.Containers[i].Name); c != nil && p.inSandbox(c) {
			return n
		}
	}
	for i := n - 1; i >= 0; i-- {
		if c := p.Seen.Latest(p.Pod.Spec.InitContainers[i].Name); c != nil && p.inSandbox(c) {
			return i
		}
	}
	return 0
}

// up says whether a sidecar lets those behind it start.
func (p *planner) up(c *corev1.Container, now *Container) bool {
	return now.GetState() == Running && !p.does(Step{Kind: Start, Container: c.Name}.Key()) &&
		(c.StartupProbe == nil || p.Probes[now.GetId()].Startup == ProbePassed)
}

// regular starts the pod's own containers. They start in order, because a postStart hook keeps those behind it waiting;
// otherwise nothing keeps one from starting beside the other.
func (p *planner) regular() {
	for i := range p.Pod.Spec.Containers {
		c := &p.Pod.Spec.Containers[i]
		begins := p.fate(c, false) == starts
		if begins {
			p.start(c)
		}
		_, stuck := p.Waiting[c.Name]
		hooked := c.Lifecycle != nil && c.Lifecycle.PostStart != nil
		if hooked && (p.does(Step{Kind: Start, Container: c.Name}.Key()) || begins && !stuck) {
			return
		}
	}
}

// start brings a container that should run one step further, or says what it waits for.
func (p *planner) start(c *corev1.Container) {
	s := Step{Kind: Start, Container: c.Name, Round: p.round}
	if p.does(s.Key()) {
		p.starts = true
		if f := p.Failed[s.Key()]; f.Reason != "" {
			p.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message} // until it turns out well
		}
		return
	}
	now := p.Seen.Latest(c.Name)
	if now != nil {
		s.Attempt = spec.Attempt(p.statusesOf(c.Name), c.Name)
		if p.resume(c, now, &s) {
			p.starts = true
			return
		}
		if p.backsOff(c, now, &s) {
			return
		}
	}
	if f, wait := p.blocked(s.Key()); wait {
		p.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
		return
	}
	if !p.hasImage(c) {
		return
	}
	p.starts = true
	if p.sandboxOK && p.Prepared {
		p.add(s)
	} else if f := p.Failed[string(Prepare)]; f.Reason == ReasonClaims {
		p.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
	}
}

func (p *planner) statusesOf(name string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range p.Seen.Containers[name] {
		out = append(out, c.ContainerStatus)
	}
	return out
}

// resume starts a container that was made, but not started before the agent died, or one that is still to be killed.
func (p *planner) resume(c *corev1.Container, now *Container, s *Step) bool {
	if alive(now) {
		p.kill(now, p.grace(), fmt.Sprintf("Container %s is in an unknown state, try killing it before restart", c.Name))
		return true
	}
	if _, over := p.exitCode(now); over || !p.inSandbox(now) {
		return false
	}
	s.ID, s.Attempt, s.Backoff = now.GetId(), now.GetMetadata().GetAttempt(), spec.Backoff(now.GetAnnotations())
	if p.Prepared {
		p.add(*s)
	}
	return true
}

// backsOff says whether a container that has exited is not to run yet.
func (p *planner) backsOff(c *corev1.Container, last *Container, s *Step) bool {
	ended := last
	f, no := p.Refused[last.GetId()]
	if no {
		at := f.At.UnixNano()
		ended = &Container{ContainerStatus: &runtimeapi.ContainerStatus{
			StartedAt: at, FinishedAt: at, Annotations: last.GetAnnotations(),
		}}
	} else if last.GetState() == Created {
		return false // its sandbox went before it was started
	}
	at, next := p.Delays.restart(ended)
	s.Backoff = next
	if !p.Now.Before(at) {
		return false
	}
	p.at(at)
	if no {
		p.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
		return true
	}
	delay := min(spec.Backoff(last.GetAnnotations()), p.Delays.Max)
	p.Waiting[c.Name] = status.Waiting{
		Reason:  "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, c.Name, spec.PodName(p.Pod)),
	}
	return true
}

// hasImage says whether the image of the next start is there, and sees to it when not.
func (p *planner) hasImage(c *corev1.Container) bool {
	if _, ok := p.Images[c.Name]; ok {
		return true
	}
	s := Step{Kind: Image, Container: c.Name}
	f, wait := p.blocked(s.Key())
	if !wait {
		p.add(s)
		if f.Reason != "" {
			p.Waiting[c.Name] = p.imageWait(c, f)
		}
		return false
	}
	p.Waiting[c.Name] = p.imageWait(c, f)
	return false
}

func (p *planner) imageWait(c *corev1.Container, f Failure) status.Waiting {
	if f.Reason != ReasonErrImagePull {
		return status.Waiting{Reason: f.Reason, Message: f.Message}
	}
	if shown := f.At.Add(errorShown); p.Now.Before(shown) {
		p.at(shown)
		return status.Waiting{Reason: f.Reason, Message: f.Message}
	}
	return status.Waiting{
		Reason:  ReasonImagePullBackOff,
		Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", c.Image, f.Reason, f.Message),
	}
}
