package pod

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// publisher tells what the pod does.
type publisher struct {
	worker *worker
	last   *corev1.Pod               // as published
	waited map[string]status.Waiting // as planned last
}

// tellWaiting tells of back-offs that have begun.
func (p *publisher) tellWaiting(d *plan.Decision) {
	w := p.worker
	for name, why := range d.Waiting {
		if p.waited[name] == why {
			continue
		}
		switch why.Reason {
		case "CrashLoopBackOff":
			w.node.containerEvent(w.pod, name, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s", name, spec.PodName(w.pod))
		case plan.ReasonImagePullBackOff:
			c := spec.FindContainer(w.pod, name)
			w.node.containerEvent(w.pod, name, corev1.EventTypeNormal, "BackOff", "Back-off pulling image %q", c.Image)
			w.node.containerEvent(w.pod, name, corev1.EventTypeWarning, "Failed", "Error: %s", why.Reason)
		}
	}
	p.waited = d.Waiting
}

// publish tells what the pod does, when it is not what was told last.
func (p *publisher) publish(d *plan.Decision) {
	w := p.worker
	if w.fate.hidden {
		return
	}
	p.tellWaiting(d)
	starting := map[string]bool{}
	for _, list := range [][]corev1.Container{w.pod.Spec.InitContainers, w.pod.Spec.Containers} {
		for i := range list {
			if c := &list[i]; c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
				_, starting[c.Name] = w.work.tasks[plan.Step{Kind: plan.Start, Container: c.Name}.Key()]
			}
		}
	}
	in := status.Input{
		Pod: w.pod, Now: time.Now(), Runtime: w.node.runtimeName, HostIPs: w.node.nodeIPs(),
		Sandbox: w.observer.seen.Sandbox(), Containers: w.observer.seen.Statuses(), Messages: w.observer.said,
		Waiting: d.Waiting, Starting: starting, Probes: p.probeStates(), Devices: w.node.resources.health(w.pod), Claims: claimStatuses(w.pod), Ended: d.Over,
	}
	in.Old = p.before()
	if w.observer.seen.Problem != "" {
		in.Reason, in.Message = ReasonNotAnswering, w.observer.seen.Problem
	}
	// Of one of an API server, what ends is removed before an agent that is started then has seen it.
	in.Shed = w.fate.end != nil && !desired.RulesOf(w.pod).Manifest
	if e := w.fate.evicted; e != nil {
		in.Shed = in.Shed || e.sheds()
		in.Failed, in.Reason, in.Message, in.Conditions = true, e.Reason, e.Message, e.Conditions
	}
	in.Conditions = slices.Concat(w.size.added.Conditions, in.Conditions, w.size.resizeConditions())
	if d.Restarting != nil {
		in.Conditions = append(in.Conditions, status.Condition(corev1.AllContainersRestarting, *d.Restarting, "", ""))
	}
	in.Resources, in.PodResources = w.size.acknowledgedResources(), w.pod.Spec.Resources
	if w.size.resized.Acting && w.size.resized.Pod != nil {
		in.PodResources = w.size.resized.Pod
	}
	pod := *w.pod
	if w.size.want != nil {
		pod = *w.size.want
	}
	pod.Status = p.build(&in)
	if w.fate.end != nil && !w.fate.end.Keep {
		seconds := int64(w.fate.end.Grace / time.Second)
		pod.DeletionTimestamp = new(metav1.NewTime(w.fate.end.Since.Add(w.fate.end.Grace).Truncate(time.Second)))
		pod.DeletionGracePeriodSeconds = &seconds
	}
	if p.last != nil && p.last.ObjectMeta.Generation == pod.Generation && sameResources(p.last, &pod) && p.last.DeletionTimestamp.Equal(pod.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(&p.last.Status, &pod.Status) {
		return
	}
	p.last = &pod
	w.node.tally.tell(w, over(&pod)) // before somebody who sees it asks for a pod that needs what this one had
	w.node.status.Put(&pod)
}

// before is what was said of the pod last: of one of an API server what that knows, when the agent has just started.
func (p *publisher) before() *corev1.PodStatus {
	switch w := p.worker; {
	case p.last != nil:
		return &p.last.Status
	case !desired.RulesOf(w.pod).Manifest && w.pod.Status.StartTime != nil:
		return &w.pod.Status
	}
	return nil
}

// build is the status of in. A final phase stays, with what was said of containers that are not there any more.
func (p *publisher) build(in *status.Input) corev1.PodStatus {
	final := p.worker.fate.final
	if final == nil {
		return status.Build(*in)
	}
	in.Shed, in.Failed, in.Reason, in.Message = true, final.Phase == corev1.PodFailed, final.Reason, final.Message
	st := status.Build(*in)
	st.Phase = final.Phase
	return st
}

func (p *publisher) probeStates() map[string]status.Probes {
	w := p.worker
	out := map[string]status.Probes{}
	for name := range w.observer.seen.Containers {
		r := w.probes[w.observer.seen.Latest(name).GetId()]
		out[name] = status.Probes{StartupOK: r.Startup == plan.ProbePassed, ReadinessOK: r.Readiness == plan.ProbePassed}
	}
	return out
}
