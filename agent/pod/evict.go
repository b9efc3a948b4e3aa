package pod

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

// ReasonEvicted is kubelet's, of pods that end because the node runs short of something.
const ReasonEvicted = "Evicted"

// NewEviction is the order that a pod end for what it takes of the node. A static pod comes back, after a time that
// grows.
func NewEviction(message string, grace time.Duration) Eviction {
	return Eviction{
		Reason: ReasonEvicted, Message: message, GraceSeconds: int64(grace / time.Second), Return: ReturnDelayed,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: message,
		}},
	}
}

// sheds says whether the containers of a pod go with it, with what they have written: the node is short of just that.
func (e *Eviction) sheds() bool { return e != nil && e.Condition == corev1.NodeDiskPressure }

// Evictor ends pods for which the node has too little, without waiting for their workers. Its methods can be called at
// any time.
type Evictor struct{ node *node }

// NewEvictor returns that of a Manager's pods.
func NewEvictor(m *Manager) *Evictor { return &Evictor{m.node} }

// Evict is [Manager.Evict] for who ends the pod's processes himself, and does not wait for the worker with that:
// the order is on the disk when it returns, so that an agent that is killed in between leaves no pod that was half
// ended. Told twice it is told once.
func (e *Evictor) Evict(uid types.UID, why Eviction) error {
	w, ok := e.node.registry.get(uid)
	if !ok {
		return fmt.Errorf("evict %s: %w", uid, errNoPod)
	}
	if w.told.ended() {
		return nil
	}
	if readTermination(e.node.cfg.RootDir, uid) == nil {
		w.told.evicted.Store(&why)
		now := termination{Since: time.Now(), Grace: spec.Seconds(why.GraceSeconds), Evicted: &why}
		if err := writeTermination(e.node.cfg.RootDir, uid, now); err != nil {
			// For want of space on the disk, say, which is what the pod may end for.
			w.log.Warn("a restart of the agent may bring the pod back", "error", err)
		}
		e.node.cfg.Events.Annotated(w.share.Pod, why.Annotations, corev1.EventTypeWarning, why.Reason, "%s", why.Message)
	}
	w.mail.putEviction(why)
	return nil
}

// Ended waits until nothing of a pod runs and what it does not need any more was given back, or until it is gone.
func (e *Evictor) Ended(ctx context.Context, uid types.UID) error {
	return e.wait(ctx, uid, func(r *reports) <-chan struct{} { return r.end })
}

// Quiet waits until nothing of a pod that was told to end runs and nothing is being started, or until it is gone. Its
// files are there still, and those in memory take memory.
func (e *Evictor) Quiet(ctx context.Context, uid types.UID) error {
	return e.wait(ctx, uid, func(r *reports) <-chan struct{} { return r.quiet })
}

func (e *Evictor) wait(ctx context.Context, uid types.UID, until func(*reports) <-chan struct{}) error {
	w, ok := e.node.registry.get(uid)
	if !ok {
		return nil
	}
	select {
	case <-until(&w.told):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for pod %s to end: %w", spec.PodName(w.share.Pod), ctx.Err())
	}
}

// Running are the IDs of the containers of a pod that run, by the runtime's word: its status knows of one that was
// just started when its worker has come to tell.
func (e *Evictor) Running(ctx context.Context, uid types.UID) ([]string, error) {
	r, err := e.node.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{spec.PodUIDLabel: string(uid)},
	}})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s: %w", uid, err)
	}
	var ids []string
	for _, c := range r.GetContainers() {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			ids = append(ids, c.GetId())
		}
	}
	return ids, nil
}

// Again has the pods asked for again that the node had something against.
func (e *Evictor) Again() { e.node.askAgain() }

// Candidate is a pod that has something of the node.
type Candidate struct {
	Pod *corev1.Pod // with its status, once it has one
	// Evicted is how it was told to end, if it was, and has not come to it yet.
	Evicted *Eviction
}

// Candidates are the pods that have something of the node, in no order. The disk is not read for them: it is who makes
// others wait when memory is short.
func (e *Evictor) Candidates() []Candidate {
	shown := map[types.NamespacedName]*corev1.Pod{}
	for _, p := range e.node.status.List() {
		shown[keyOf(p)] = p
	}
	var out []Candidate
	for _, w := range e.node.registry.all() {
		if w.told.ended() {
			continue
		}
		c := Candidate{Pod: w.share.Pod}
		if p := shown[keyOf(c.Pod)]; p != nil && p.UID == w.uid {
			c.Pod = p
		}
		c.Evicted = w.told.evicted.Load()
		out = append(out, c)
	}
	return out
}

// tellEnd tells who waits that the pod has come to its end, or that there is no worker any more.
func (r *reports) tellEnd() {
	r.tellQuiet()
	r.once.Do(func() { close(r.end) })
}

func (r *reports) tellQuiet() { r.hushed.Do(func() { close(r.quiet) }) }

// tellQuiet tells who waits when the pod is to end, nothing of it runs, and nothing is being started: what was begun
// before it was told is cut off, and may have come to something still.
func (w *worker) tellQuiet() {
	if w.fate.end == nil || w.observer.seen == nil {
		return
	}
	for _, t := range w.work.tasks {
		if t.step.Kind == plan.Start {
			return
		}
	}
	for _, list := range w.observer.seen.Containers {
		for i := range list {
			if list[i].GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				return
			}
		}
	}
	w.told.tellQuiet()
}

// ended says whether a pod has come to its end.
func (r *reports) ended() bool { return r.over.Load() }
