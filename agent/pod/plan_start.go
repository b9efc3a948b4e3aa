package pod

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
func (p *planner) exitCode(c *container) (code int32, ok bool) {
	switch c.GetState() {
	case exited:
		return c.GetExitCode(), true
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return 137, true
	case created:
		if _, no := p.refused[c.GetId()]; no {
			return 128, true
		}
	}
	return 0, false
}

// fate of a container of the pod. One whose sandbox is gone has ended, even if it was never started.
func (p *planner) fate(c *corev1.Container, init bool) fate {
	now := p.seen.latest(c.Name)
	if now == nil || p.past(now) {
		return starts
	}
	code, over := p.exitCode(now)
	switch {
	case !over && now.GetState() == running && p.inSandbox(now):
		return keeps
	case !over && now.GetState() == running:
		// It is to be killed with its sandbox, which is no success.
		code = 137
	case !over:
		return starts
	}
	if status.Restarts(p.pod, c, init, code) {
		return starts
	}
	return ends
}

func (p *planner) inSandbox(c *container) bool {
	return p.sandboxOK && c.sandbox == p.seen.sandbox().GetId() && !p.past(c)
}

// complete says whether the pod is over: every container has ended for good, or an init container has failed for good.
func (p *planner) complete() bool {
	all, any := true, false
	for i := range p.pod.Spec.Containers {
		f := p.fate(&p.pod.Spec.Containers[i], false)
		all, any = all && f == ends, any || f == keeps
	}
	return all || !any && p.initFailed()
}

func (p *planner) initFailed() bool {
	for i := range p.pod.Spec.InitContainers {
		c := &p.pod.Spec.InitContainers[i]
		now := p.seen.latest(c.Name)
		if now == nil || p.past(now) || status.IsSidecar(c) {
			continue
		}
		if code, over := p.exitCode(now); over && code != 0 && !status.Restarts(p.pod, c, true, code) {
			return true
		}
	}
	return false
}

// initialize takes the init containers one step further, and says whether the pod's own containers may start.
func (p *planner) initialize() bool {
	last := p.lastBegun()
	for i := range p.pod.Spec.InitContainers {
		c := &p.pod.Spec.InitContainers[i]
		now := p.seen.latest(c.Name)
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
		case here && now.GetState() == exited && now.GetExitCode() == 0:
			continue
		case here && now.GetState() == running:
		default:
			p.start(c)
		}
		return false
	}
	return true
}

// lastBegun is the index behind the init containers that are over with in this sandbox, because something behind them has begun.
func (p *planner) lastBegun() int {
	n := len(p.pod.Spec.InitContainers)
	for i := range p.pod.Spec.Containers {
		if c := p.seen.latest(p.pod.Spec.Containers[i].Name); c != nil && p.inSandbox(c) {
			return n
		}
	}
	for i := n - 1; i >= 0; i-- {
		if c := p.seen.latest(p.pod.Spec.InitContainers[i].Name); c != nil && p.inSandbox(c) {
			return i
		}
	}
	return 0
}

// up says whether a sidecar lets those behind it start.
func (p *planner) up(c *corev1.Container, now *container) bool {
	return now.GetState() == running && !p.does(step{kind: stepStart, container: c.Name}.key()) &&
		(c.StartupProbe == nil || p.probes[now.GetId()].Startup == Passed)
}

// regular starts the pod's own containers. They start in order, because a postStart hook keeps those behind it waiting;
// otherwise nothing keeps one from starting beside the other.
func (p *planner) regular() {
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		begins := p.fate(c, false) == starts
		if begins {
			p.start(c)
		}
		_, stuck := p.waiting[c.Name]
		hooked := c.Lifecycle != nil && c.Lifecycle.PostStart != nil
		if hooked && (p.does(step{kind: stepStart, container: c.Name}.key()) || begins && !stuck) {
			return
		}
	}
}

// start brings a container that should run one step further, or says what it waits for.
func (p *planner) start(c *corev1.Container) {
	s := step{kind: stepStart, container: c.Name, round: p.round}
	if p.does(s.key()) {
		p.starts = true
		if f := p.failed[s.key()]; f.reason != "" {
			p.waiting[c.Name] = status.Waiting{Reason: f.reason, Message: f.message} // until it turns out well
		}
		return
	}
	now := p.seen.latest(c.Name)
	if now != nil {
		s.attempt = spec.Attempt(p.statusesOf(c.Name), c.Name)
		if p.resume(c, now, &s) {
			p.starts = true
			return
		}
		if p.backsOff(c, now, &s) {
			return
		}
	}
	if f, wait := p.blocked(s.key()); wait {
		p.waiting[c.Name] = status.Waiting{Reason: f.reason, Message: f.message}
		return
	}
	if !p.hasImage(c) {
		return
	}
	p.starts = true
	if p.sandboxOK && p.prepared {
		p.add(s)
	} else if f := p.failed[string(stepPrepare)]; f.reason == reasonClaims {
		p.waiting[c.Name] = status.Waiting{Reason: f.reason, Message: f.message}
	}
}

func (p *planner) statusesOf(name string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range p.seen.containers[name] {
		out = append(out, c.ContainerStatus)
	}
	return out
}

// resume starts a container that was made, but not started before the agent died, or one that is still to be killed.
func (p *planner) resume(c *corev1.Container, now *container, s *step) bool {
	if alive(now) {
		p.kill(now, p.grace(), fmt.Sprintf("Container %s is in an unknown state, try killing it before restart", c.Name))
		return true
	}
	if _, over := p.exitCode(now); over || !p.inSandbox(now) {
		return false
	}
	s.id, s.attempt, s.backoff = now.GetId(), now.GetMetadata().GetAttempt(), spec.Backoff(now.GetAnnotations())
	if p.prepared {
		p.add(*s)
	}
	return true
}

// backsOff says whether a container that has exited is not to run yet.
func (p *planner) backsOff(c *corev1.Container, last *container, s *step) bool {
	ended := last
	f, no := p.refused[last.GetId()]
	if no {
		at := f.at.UnixNano()
		ended = &container{ContainerStatus: &runtimeapi.ContainerStatus{
			StartedAt: at, FinishedAt: at, Annotations: last.GetAnnotations(),
		}}
	} else if last.GetState() == created {
		return false // its sandbox went before it was started
	}
	at, next := p.delays.restart(ended)
	s.backoff = next
	if !p.now.Before(at) {
		return false
	}
	p.at(at)
	if no {
		p.waiting[c.Name] = status.Waiting{Reason: f.reason, Message: f.message}
		return true
	}
	delay := min(spec.Backoff(last.GetAnnotations()), p.delays.max)
	p.waiting[c.Name] = status.Waiting{
		Reason:  "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, c.Name, spec.PodName(p.pod)),
	}
	return true
}

// hasImage says whether the image of the next start is there, and sees to it when not.
func (p *planner) hasImage(c *corev1.Container) bool {
	if _, ok := p.images[c.Name]; ok {
		return true
	}
	s := step{kind: stepImage, container: c.Name}
	f, wait := p.blocked(s.key())
	if !wait {
		p.add(s)
		if f.reason != "" {
			p.waiting[c.Name] = p.imageWait(c, f)
		}
		return false
	}
	p.waiting[c.Name] = p.imageWait(c, f)
	return false
}

func (p *planner) imageWait(c *corev1.Container, f failure) status.Waiting {
	if f.reason != reasonErrImagePull {
		return status.Waiting{Reason: f.reason, Message: f.message}
	}
	if shown := f.at.Add(errorShown); p.now.Before(shown) {
		p.at(shown)
		return status.Waiting{Reason: f.reason, Message: f.message}
	}
	return status.Waiting{
		Reason:  reasonImagePullBackOff,
		Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", c.Image, f.reason, f.message),
	}
}
