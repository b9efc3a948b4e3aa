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

// starter brings the containers of a pod that is to run one step further each.
type starter struct {
	view   *View
	draft  *draft
	now    *situation
	starts bool // something of the pod is being started, or waits for it
}

// initialize takes the init containers one step further, and says whether the pod's own containers may start.
func (r *starter) initialize() bool {
	last := r.now.lastBegun()
	for i := range r.view.Pod.Spec.InitContainers {
		c := &r.view.Pod.Spec.InitContainers[i]
		now := r.view.Seen.Latest(c.Name)
		here := now != nil && r.now.inSandbox(now)
		if status.IsSidecar(c) {
			up := here && r.up(c, now)
			if !here || r.now.fate(c, true) == starts {
				r.start(c)
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
			r.start(c)
		}
		return false
	}
	return true
}

// up says whether a sidecar lets those behind it start.
func (r *starter) up(c *corev1.Container, now *Container) bool {
	return now.GetState() == Running && !r.draft.does(Step{Kind: Start, Container: c.Name}.Key()) &&
		(c.StartupProbe == nil || r.view.Probes[now.GetId()].Startup == ProbePassed)
}

// regular starts the pod's own containers. They start in order, because a postStart hook keeps those behind it waiting;
// otherwise nothing keeps one from starting beside the other.
func (r *starter) regular() {
	for i := range r.view.Pod.Spec.Containers {
		c := &r.view.Pod.Spec.Containers[i]
		begins := r.now.fate(c, false) == starts
		if begins {
			r.start(c)
		}
		_, stuck := r.draft.out.Waiting[c.Name]
		hooked := c.Lifecycle != nil && c.Lifecycle.PostStart != nil
		if hooked && (r.draft.does(Step{Kind: Start, Container: c.Name}.Key()) || begins && !stuck) {
			return
		}
	}
}

// start brings a container that should run one step further, or says what it waits for.
func (r *starter) start(c *corev1.Container) {
	s := Step{Kind: Start, Container: c.Name, Round: r.now.round}
	if r.draft.does(s.Key()) {
		r.starts = true
		if f := r.view.Failed[s.Key()]; f.Reason != "" {
			// Until it turns out well.
			r.draft.out.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
		}
		return
	}
	now := r.view.Seen.Latest(c.Name)
	if now != nil {
		s.Attempt = spec.Attempt(r.now.statusesOf(c.Name), c.Name)
		if r.resume(c, now, &s) {
			r.starts = true
			return
		}
		if r.backsOff(c, now, &s) {
			return
		}
	}
	if f, wait := r.draft.blocked(s.Key()); wait {
		r.draft.out.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
		return
	}
	if !r.hasImage(c) {
		return
	}
	r.starts = true
	if r.now.sandboxOK && r.view.Prepared {
		r.draft.add(s)
	} else if f := r.view.Failed[string(Prepare)]; f.Reason == ReasonClaims {
		r.draft.out.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
	}
}

// resume starts a container that was made, but not started before the agent died, or one that is still to be killed.
func (r *starter) resume(c *corev1.Container, now *Container, s *Step) bool {
	if alive(now) {
		r.draft.kill(now, r.now.grace(),
			fmt.Sprintf("Container %s is in an unknown state, try killing it before restart", c.Name))
		return true
	}
	if _, over := r.now.exitCode(now); over || !r.now.inSandbox(now) {
		return false
	}
	s.ID, s.Attempt, s.Backoff = now.GetId(), now.GetMetadata().GetAttempt(), spec.Backoff(now.GetAnnotations())
	if r.view.Prepared {
		r.draft.add(*s)
	}
	return true
}

// backsOff says whether a container that has exited is not to run yet.
func (r *starter) backsOff(c *corev1.Container, last *Container, s *Step) bool {
	ended := last
	f, no := r.view.Refused[last.GetId()]
	if no {
		at := f.At.UnixNano()
		ended = &Container{ContainerStatus: &runtimeapi.ContainerStatus{
			StartedAt: at, FinishedAt: at, Annotations: last.GetAnnotations(),
		}}
	} else if last.GetState() == Created {
		return false // its sandbox went before it was started
	}
	at, next := r.view.Delays.restart(ended)
	s.Backoff = next
	if !r.view.Now.Before(at) {
		return false
	}
	r.draft.at(at)
	if no {
		r.draft.out.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
		return true
	}
	delay := min(spec.Backoff(last.GetAnnotations()), r.view.Delays.Max)
	r.draft.out.Waiting[c.Name] = status.Waiting{
		Reason:  "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, c.Name, spec.PodName(r.view.Pod)),
	}
	return true
}

// hasImage says whether the image of the next start is there, and sees to it when not.
func (r *starter) hasImage(c *corev1.Container) bool {
	if _, ok := r.view.Images[c.Name]; ok {
		return true
	}
	s := Step{Kind: Image, Container: c.Name}
	f, wait := r.draft.blocked(s.Key())
	if !wait {
		r.draft.add(s)
		if f.Reason != "" {
			r.draft.out.Waiting[c.Name] = r.imageWait(c, f)
		}
		return false
	}
	r.draft.out.Waiting[c.Name] = r.imageWait(c, f)
	return false
}

func (r *starter) imageWait(c *corev1.Container, f Failure) status.Waiting {
	if f.Reason != ReasonErrImagePull {
		return status.Waiting{Reason: f.Reason, Message: f.Message}
	}
	if shown := f.At.Add(errorShown); r.view.Now.Before(shown) {
		r.draft.at(shown)
		return status.Waiting{Reason: f.Reason, Message: f.Message}
	}
	return status.Waiting{
		Reason:  ReasonImagePullBackOff,
		Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", c.Image, f.Reason, f.Message),
	}
}
