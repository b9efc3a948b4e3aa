// Package plan decides what is to be done next about a pod. It is pure: the same [View] always comes to the same
// [Decision], so that an agent that was restarted goes on with what the one before it was about.
package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// Kind is what a step does.
type Kind string

// The kinds of steps.
const (
	Prepare  Kind = "prepare"  // directories, volumes, cgroup, sandbox
	Renew    Kind = "renew"    // bring volumes up to date with their objects
	Image    Kind = "image"    // have the image of a container's next start
	Start    Kind = "start"    // create and start a container, run its postStart hook
	Resize   Kind = "resize"   // make cgroups be what is allocated
	Kill     Kind = "kill"     // preStop hook, then the stop signal
	Remove   Kind = "remove"   // remove a dead container
	Forget   Kind = "forget"   // remove a dead sandbox
	Finish   Kind = "finish"   // give back what a pod that is over does not need
	Teardown Kind = "teardown" // remove everything of the pod
)

// Step is one thing to be done now. Steps that are planned together do not depend on each other.
type Step struct {
	Kind      Kind
	Container string // name
	ID        string // of the container or sandbox
	Attempt   uint32
	Round     uint32        // start: how often all containers of the pod have been sent back
	Backoff   time.Duration // start: the delay its container will carry
	Deadline  time.Time     // kill: when grace ends
	Force     bool          // kill: there is no grace at all
	Why       string        // kill: what people are told
}

// LogAttrs name the step in the log.
func (s Step) LogAttrs() []any {
	out := []any{"step", string(s.Kind)}
	for _, f := range [][2]string{{"container", s.Container}, {"id", s.ID}, {"reason", s.Why}} {
		if f[1] != "" {
			out = append(out, f[0], f[1])
		}
	}
	return out
}

// Key is what no two running steps have in common.
func (s Step) Key() string {
	switch {
	case s.Kind == Kill || s.Kind == Remove || s.Kind == Forget:
		return string(s.Kind) + "/" + s.ID
	case s.Container != "":
		return string(s.Kind) + "/" + s.Container
	}
	return string(s.Kind)
}

// Ending is the order that a pod end.
type Ending struct {
	Since time.Time
	Grace time.Duration
	Keep  bool // it stays known afterwards: it is over, but still wanted
	Shed  bool // its containers do not stay then: it is for their files that it ends
}

// View is all that a plan depends on.
type View struct {
	Pod      *corev1.Pod
	Now      time.Time
	Seen     *Observed
	Prepared bool                    // what a start needs beside the sandbox is there
	Renew    bool                    // volumes may not be up to date
	Finished bool                    // what a pod that is over does not need was given back
	Torn     bool                    // nothing is left of the pod
	Busy     map[string]Step         // those that run, by key
	Resized  Resized                 // what containers were given since they were made
	Images   map[string]spec.Image   // by container name: for its next start
	Failed   map[string]Failure      // by key of the step
	Refused  map[string]Failure      // by container ID: those that could not be started
	Probes   map[string]ProbeResults // by container ID
	Unneeded map[string]bool         // IDs of those of Seen.Dead that need not be kept
	Older    time.Time               // when there may be more of them though nothing happens; zero: never
	End      *Ending                 // nil: the pod runs
	Deadline time.Time               // when it has been active long enough; zero: never
	Delays   Delays
}

// Decision is what a plan comes to.
type Decision struct {
	Steps      []Step
	Waiting    map[string]status.Waiting // by container name: why those do not run that should
	Wake       time.Time                 // when to plan again though nothing happens; zero: never
	Over       bool                      // nothing runs or will again
	Gone       bool                      // nothing is left
	Expired    bool                      // it has been active for longer than it may
	Restarting *bool                     // whether all containers are still being restarted; nil: they never were
}

// planner makes one decision.
type planner struct {
	view  *View
	draft *draft
	now   *situation
}

// Decide decides what is to be done next. It is pure.
func Decide(v *View) Decision {
	p := &planner{v, &draft{view: v, out: Decision{Waiting: map[string]status.Waiting{}}}, newSituation(v)}
	switch {
	case v.End != nil:
		p.ending()
	case p.restartsAll():
	case p.now.complete():
		p.finish()
	case p.pastDeadline():
		p.draft.out.Expired = true
	default:
		p.run()
	}
	return p.draft.out
}

func (p *planner) pastDeadline() bool {
	if p.view.Deadline.IsZero() {
		return false
	}
	p.draft.at(p.view.Deadline)
	return !p.view.Now.Before(p.view.Deadline)
}

// run plans for a pod that is to run.
func (p *planner) run() {
	if !p.now.sandboxOK {
		if p.killAll("Pod sandbox changed, it will be killed and re-created.") {
			return // first end what runs in the sandbox that is no good any more
		}
	}
	p.unwanted()
	if p.now.sandboxOK && p.resize() {
		return
	}
	s := &starter{view: p.view, draft: p.draft, now: p.now}
	if s.initialize() {
		s.regular()
	}
	s.ephemeral()
	// A sandbox is needed in any case, the rest only when something is to be started.
	needed := !p.now.sandboxOK || s.starts && !p.view.Prepared
	// The two steps make the same volumes.
	switch renewing := p.draft.does(string(Renew)); {
	case needed && !renewing:
		if _, wait := p.draft.blocked(string(Prepare)); !wait && !p.draft.does(string(Prepare)) {
			p.draft.out.Steps = slices.Insert(p.draft.out.Steps, 0, p.prepare()) // it takes longest
		}
	case p.view.Renew && p.now.sandboxOK && !p.draft.does(string(Prepare)):
		p.draft.try(Step{Kind: Renew})
	}
	if !s.starts {
		p.collect()
	}
}

func (p *planner) prepare() Step {
	s := Step{Kind: Prepare}
	if old := p.view.Seen.Sandbox(); old != nil {
		s.Attempt = old.GetMetadata().GetAttempt()
		if !p.now.sandboxOK {
			s.Attempt++
			s.ID = old.GetId() // to be ended first
		}
	}
	return s
}

// killAll ends whatever runs, and says whether there is anything left to wait for.
func (p *planner) killAll(why string) bool {
	any := false
	for _, list := range p.view.Seen.Containers {
		for i := range list {
			if alive(&list[i]) {
				any = true
				p.draft.kill(&list[i], p.now.grace(), why)
			}
		}
	}
	return any
}

// alive says whether the container has to be stopped before it can be forgotten.
func alive(c *Container) bool {
	return c.GetState() == Running || c.GetState() == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// unwanted ends containers that run and should not: their definition has changed, or a probe has failed.
func (p *planner) unwanted() {
	for name, list := range p.view.Seen.Containers {
		for i := range list {
			// A start that was given up has come to its end after all.
			if i > 0 && alive(&list[i]) {
				p.draft.kill(&list[i], p.now.grace(),
					fmt.Sprintf("Container %s has been started again, the one before it still runs", name))
			}
		}
	}
	for _, list := range [][]corev1.Container{p.view.Pod.Spec.InitContainers, p.view.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			now := p.view.Seen.Latest(c.Name)
			if now == nil || now.GetState() != Running {
				continue
			}
			if spec.Changed(c, now.GetAnnotations()) {
				p.draft.kill(now, p.now.grace(), fmt.Sprintf("Container %s definition changed, will be restarted", c.Name))
				continue
			}
			if why, grace := p.view.Probes[now.GetId()].verdict(c, p.now.grace()); why != "" {
				p.draft.kill(now, grace, why)
			}
		}
	}
}

// collect removes what nobody will ask for any more: dead containers that are not kept, and those that never ran.
func (p *planner) collect() {
	if !p.view.Older.IsZero() {
		p.draft.at(p.view.Older)
	}
	for name, list := range p.view.Seen.Containers {
		for i := range list {
			c := &list[i]
			switch {
			case alive(c), i == 0:
			case c == p.now.trigger && p.draft.out.Restarting != nil && *p.draft.out.Restarting:
				// Some have still to learn from it that they are past.
			case c.GetState() == Exited && !p.view.Unneeded[c.GetId()]:
			default:
				p.draft.try(Step{Kind: Remove, Container: name, ID: c.GetId(), Attempt: c.GetMetadata().GetAttempt()})
			}
		}
	}
	for _, s := range p.view.Seen.Sandboxes[min(1, len(p.view.Seen.Sandboxes)):] {
		if !p.now.holds(s.GetId()) {
			p.draft.try(Step{Kind: Forget, ID: s.GetId()})
		}
	}
}
