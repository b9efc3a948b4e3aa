package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
)

// Keeper keeps what is desired over the machine's end.
type Keeper interface {
	// Load has what was kept when the node was there last.
	Load() []kept.Pod
	// Save has these pods be kept, and no others. It does not wait.
	Save(pods []kept.Pod)
	// Run does the keeping, until ctx ends.
	Run(ctx context.Context)
}

// saveAfter is how long after a change everything is handed to the keeper: pods come with what they refer to.
const saveAfter = 500 * time.Millisecond

// keeping is when something is kept, or what was kept counts. The zero value keeps nothing.
type keeping struct {
	keeper Keeper
	absent *time.Timer // rings when the server has not answered at the start
	save   *time.Timer
	due    bool
}

// keep begins to keep what is desired, if anything does. What it returns ends that, with all of it kept.
func (s *Source) keep(ctx context.Context) (end func()) {
	k := s.cfg.Keep
	if k == nil {
		return func() {}
	}
	s.keeping = keeping{keeper: k, absent: time.NewTimer(s.cfg.pace.absent), save: time.NewTimer(time.Hour)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.wait.Go(func() { k.Run(ctx) })
	return func() {
		s.keeping.absent.Stop()
		s.keeping.save.Stop()
		if s.keeping.due {
			s.save()
		}
		cancel()
	}
}

// alarms are those of both.
func (k *keeping) alarms() (absent, save <-chan time.Time) {
	if k.keeper == nil {
		return nil, nil
	}
	return k.absent.C, k.save.C
}

// changed notes that something may be another now. What was kept stays until the server has said what there is.
func (s *Source) changed() {
	if k := &s.keeping; k.keeper != nil && s.listed && !k.due {
		k.due = true
		k.save.Reset(saveAfter)
	}
}

// save hands everything to the keeper that is to be started again: nothing that has ended, or is to.
func (s *Source) save() {
	s.keeping.due = false
	var pods []kept.Pod
	for _, st := range s.pods {
		if !desired.IsMirror(st.pod) && !terminal(st.pod) && st.pod.DeletionTimestamp == nil {
			pods = append(pods, kept.Pod{Pod: st.pod, Objects: s.objects.of(st)})
		}
	}
	s.keeping.keeper.Save(pods)
}

// of are the objects that a pod refers to, directly or not. Of Services those are kept that its containers are told of.
func (os *objects) of(st *podState) []object.Object {
	var out []object.Object
	for ref := range st.refs {
		e := os.entries[ref]
		if e.object != nil {
			out = append(out, e.object)
		}
		for of, o := range e.all {
			if of.Kind != object.Service || of.Namespace == st.key.Namespace || of.Namespace == corev1.NamespaceDefault {
				out = append(out, o)
			}
		}
	}
	return out
}

// fromKept has the pods that were kept be desired, as long as the server has not said what there is.
func (s *Source) fromKept() {
	if s.listed {
		return
	}
	pods := s.keeping.keeper.Load()
	if len(pods) == 0 {
		return
	}
	s.log.Warn("API server does not answer, and the pods that were kept on the node start", "pods", len(pods))
	s.objects.kept = map[object.Ref]object.Object{}
	for _, p := range pods {
		for _, o := range p.Objects {
			k := object.Kind(o.GetObjectKind().GroupVersionKind().Kind)
			s.objects.kept[object.RefTo(k, o.GetNamespace(), o.GetName())] = o
		}
	}
	for _, p := range pods {
		key := types.NamespacedName{Namespace: p.Pod.Namespace, Name: p.Pod.Name}
		if err := ours(p.Pod, s.cfg.NodeName); err != nil || s.pods[key] != nil {
			continue
		}
		p.Pod.APIVersion, p.Pod.Kind = "v1", "Pod"
		st := &podState{key: key, pod: p.Pod, first: time.Now().Format(time.RFC3339Nano), kept: true}
		s.pods[key] = st
		// A claim leads to its volume, that to its driver, and both to an attachment.
		for before := -1; before != len(st.refs); {
			before = len(st.refs)
			s.hold(st, s.objects.needs(p.Pod))
		}
		clear(st.lacks)
		s.offer(st)
	}
	s.objects.kept = nil
}

// fill has an entry be what was kept of it, while that counts.
func (os *objects) fill(e *entry) {
	if os.kept == nil {
		return
	}
	put := func(ref object.Ref, o object.Object) {
		os.s.queue.put(desired.Update{Kind: ref.Kind, Key: ref.NamespacedName, Object: o}, versionOf(o))
	}
	if e.ref.Name != "" {
		if o := os.kept[e.ref]; o != nil {
			e.object, e.answered = o, true
			put(e.ref, o)
		}
		return
	}
	e.all, e.answered = map[object.Ref]object.Object{}, true
	for ref, o := range os.kept {
		if ref.Kind == e.ref.Kind {
			e.all[ref] = o
			put(ref, o)
		}
	}
	os.s.queue.all(e.ref.Kind)
}
