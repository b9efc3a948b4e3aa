package pod

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// kind is what a step does.
type kind string

const (
	stepPrepare  kind = "prepare"  // directories, volumes, cgroup, sandbox
	stepRenew    kind = "renew"    // bring volumes up to date with their objects
	stepImage    kind = "image"    // have the image of a container's next start
	stepStart    kind = "start"    // create and start a container, run its postStart hook
	stepResize   kind = "resize"   // make cgroups be what is allocated
	stepKill     kind = "kill"     // preStop hook, then the stop signal
	stepRemove   kind = "remove"   // remove a dead container
	stepForget   kind = "forget"   // remove a dead sandbox
	stepFinish   kind = "finish"   // give back what a pod that is over does not need
	stepTeardown kind = "teardown" // remove everything of the pod
)

// step is one thing to be done now. Steps that are planned together do not depend on each other.
type step struct {
	kind      kind
	container string // name
	id        string // of the container or sandbox
	attempt   uint32
	round     uint32        // start: how often all containers of the pod have been sent back
	backoff   time.Duration // start: the delay its container will carry
	deadline  time.Time     // kill: when grace ends
	force     bool          // kill: there is no grace at all
	why       string        // kill: what people are told
}

// key is what no two running steps have in common.
func (s step) key() string {
	switch {
	case s.kind == stepKill || s.kind == stepRemove || s.kind == stepForget:
		return string(s.kind) + "/" + s.id
	case s.container != "":
		return string(s.kind) + "/" + s.container
	}
	return string(s.kind)
}

// failure is what became of a step, and when it may be tried again.
type failure struct {
	reason, message string
	err             error
	at, until       time.Time
	count           int
}

// ending is the order that a pod end.
type ending struct {
	since time.Time
	grace time.Duration
	keep  bool // it stays known afterwards: it is over, but still wanted
}

// view is all that a plan depends on.
type view struct {
	pod      *corev1.Pod
	now      time.Time
	seen     *observed
	prepared bool                    // what a start needs beside the sandbox is there
	renew    bool                    // volumes may not be up to date
	finished bool                    // what a pod that is over does not need was given back
	torn     bool                    // nothing is left of the pod
	busy     map[string]step         // those that run, by key
	resized  resized                 // what containers were given since they were made
	images   map[string]spec.Image   // by container name: for its next start
	failed   map[string]failure      // by key of the step
	refused  map[string]failure      // by container ID: those that could not be started
	probes   map[string]ProbeResults // by container ID
	end      *ending                 // nil: the pod runs
	deadline time.Time               // when it has been active long enough; zero: never
	delays   delays
}

// decision is what a plan comes to.
type decision struct {
	steps      []step
	waiting    map[string]status.Waiting // by container name: why those do not run that should
	wake       time.Time                 // when to plan again though nothing happens; zero: never
	over       bool                      // nothing runs or will again
	gone       bool                      // nothing is left
	expired    bool                      // it has been active for longer than it may
	restarting *bool                     // whether all containers are still being restarted; nil: they never were
}

// planner makes one decision.
type planner struct {
	*view
	decision
	sandboxOK bool
	anew      *container // whose exit has sent all containers of the pod back to the start; nil: none
	round     uint32     // how often that was
	starts    bool       // something of the pod is being started, or waits for it
}

// plan decides what is to be done next. It is pure.
func plan(v *view) decision {
	p := &planner{view: v, sandboxOK: v.seen.ready(v.pod.Spec.HostNetwork)}
	p.waiting = map[string]status.Waiting{}
	switch {
	case v.end != nil:
		p.ending()
	case p.startsAnew():
	case p.complete():
		p.finish()
	case p.pastDeadline():
		p.expired = true
	default:
		p.run()
	}
	return p.decision
}

func (p *planner) add(s step) {
	if !p.does(s.key()) {
		p.steps = append(p.steps, s)
	}
}

// does says whether the step of that key runs.
func (p *planner) does(key string) bool {
	_, ok := p.busy[key]
	return ok
}

// at asks to be woken.
func (p *planner) at(t time.Time) {
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}

// blocked says whether a step has failed too recently to be tried again.
func (p *planner) blocked(key string) (failure, bool) {
	f, ok := p.failed[key]
	if !ok || !p.now.Before(f.until) {
		return f, false
	}
	p.at(f.until)
	return f, true
}

func (p *planner) pastDeadline() bool {
	if p.deadline.IsZero() {
		return false
	}
	p.at(p.deadline)
	return !p.now.Before(p.deadline)
}

// run plans for a pod that is to run.
func (p *planner) run() {
	if !p.sandboxOK {
		if p.killAll("Pod sandbox changed, it will be killed and re-created.") {
			return // first end what runs in the sandbox that is no good any more
		}
	}
	p.unwanted()
	if p.sandboxOK && p.resize() {
		return
	}
	if p.initialize() {
		p.regular()
	}
	p.ephemeral()
	// The two steps make the same volumes.
	switch renewing := p.does(string(stepRenew)); {
	case p.needsPrepare() && !renewing:
		if _, wait := p.blocked(string(stepPrepare)); !wait && !p.does(string(stepPrepare)) {
			p.steps = slices.Insert(p.steps, 0, p.prepare()) // it takes longest
		}
	case p.renew && p.sandboxOK && !p.does(string(stepPrepare)):
		p.tidy(step{kind: stepRenew})
	}
	if !p.starts {
		p.collect()
	}
}

// needsPrepare: a sandbox is needed in any case, the rest only when something is to be started.
func (p *planner) needsPrepare() bool { return !p.sandboxOK || p.starts && !p.prepared }

func (p *planner) prepare() step {
	s := step{kind: stepPrepare}
	if old := p.seen.sandbox(); old != nil {
		s.attempt = old.GetMetadata().GetAttempt()
		if !p.sandboxOK {
			s.attempt++
			s.id = old.GetId() // to be ended first
		}
	}
	return s
}

// killAll ends whatever runs, and says whether there is anything left to wait for.
func (p *planner) killAll(why string) bool {
	any := false
	for _, list := range p.seen.containers {
		for i := range list {
			if alive(&list[i]) {
				any = true
				p.kill(&list[i], p.grace(), why)
			}
		}
	}
	return any
}

// alive says whether the container has to be stopped before it can be forgotten.
func alive(c *container) bool {
	return c.GetState() == running || c.GetState() == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// kill ends a container with that much grace from now on.
func (p *planner) kill(c *container, grace time.Duration, why string) {
	p.killBy(c, p.now.Add(grace), grace == 0, why)
}

func (p *planner) killBy(c *container, deadline time.Time, force bool, why string) {
	s := step{kind: stepKill, container: c.GetMetadata().GetName(), id: c.GetId(), deadline: deadline, force: force, why: why}
	if _, wait := p.blocked(s.key()); !wait {
		p.add(s)
	}
}

func (p *planner) grace() time.Duration { return graceOf(p.pod) }

// graceOf is the time that a pod's spec gives its containers to end.
func graceOf(pod *corev1.Pod) time.Duration {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return time.Duration(*g) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// unwanted ends containers that run and should not: their definition has changed, or a probe has failed.
func (p *planner) unwanted() {
	for name, list := range p.seen.containers {
		for i := range list {
			// A start that was given up has come to its end after all.
			if i > 0 && alive(&list[i]) {
				p.kill(&list[i], p.grace(), fmt.Sprintf("Container %s has been started again, the one before it still runs", name))
			}
		}
	}
	for _, list := range [][]corev1.Container{p.pod.Spec.InitContainers, p.pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			now := p.seen.latest(c.Name)
			if now == nil || now.GetState() != running {
				continue
			}
			if spec.Changed(c, now.GetAnnotations()) {
				p.kill(now, p.grace(), fmt.Sprintf("Container %s definition changed, will be restarted", c.Name))
				continue
			}
			if why, grace := p.probes[now.GetId()].verdict(c, p.grace()); why != "" {
				p.kill(now, grace, why)
			}
		}
	}
}

// collect removes what nobody will ask for any more: of each name one dead container is kept beside the newest, for its log and
// its state.
func (p *planner) collect() {
	for name, list := range p.seen.containers {
		kept := false
		for i := range list {
			c := &list[i]
			switch {
			case alive(c), i == 0:
			case c == p.anew && p.restarting != nil && *p.restarting: // some have still to learn from it that they are past
			case c.GetState() == exited && !kept:
				kept = true
			default:
				p.tidy(step{kind: stepRemove, container: name, id: c.GetId(), attempt: c.GetMetadata().GetAttempt()})
			}
		}
	}
	for _, s := range p.seen.sandboxes[min(1, len(p.seen.sandboxes)):] {
		if !p.holds(s.GetId()) {
			p.tidy(step{kind: stepForget, id: s.GetId()})
		}
	}
}

// tidy does a step now, unless it has failed just now.
func (p *planner) tidy(s step) {
	if _, wait := p.blocked(s.key()); !wait {
		p.add(s)
	}
}

func (p *planner) holds(sandbox string) bool {
	for _, list := range p.seen.containers {
		for i := range list {
			if list[i].sandbox == sandbox {
				return true
			}
		}
	}
	return false
}
