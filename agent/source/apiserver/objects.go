package apiserver

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

// entry is an object that pods refer to, or all of a kind where its ref has no name.
type entry struct {
	ref      object.Ref
	users    map[types.NamespacedName]bool // pods
	answered bool                          // the server has said what there is, even if that is nothing
	refusals int
	object   object.Object                // nil: none
	all      map[object.Ref]object.Object // of a kind as a whole

	ctx  context.Context // while pods refer to it
	stop context.CancelFunc
	anew func() // has it be asked for again, from the beginning
}

// objects are those that pods refer to. It belongs to the goroutine of [Source.Run].
type objects struct {
	s       *Source
	entries map[object.Ref]*entry
	slots   chan struct{}                // for questions
	kept    map[object.Ref]object.Object // on the node, while pods are begun that were; else nil
}

func newObjects(s *Source) *objects {
	return &objects{s: s, entries: map[object.Ref]*entry{}, slots: make(chan struct{}, asked)}
}

// use returns the entry of an object, which is asked for from then on.
func (os *objects) use(ref object.Ref) *entry {
	if e := os.entries[ref]; e != nil {
		return e
	}
	e := &entry{ref: ref, users: map[types.NamespacedName]bool{}}
	os.entries[ref] = e
	os.fill(e)
	ctx, cancel := context.WithCancel(os.s.ctx)
	e.ctx, e.stop = ctx, cancel
	k := kindOf(ref.Kind)
	switch {
	case k.resource.Resource == "":
		e.answered, e.anew = true, func() {} // no API server has it
	case k.list == nil:
		r := newReader(os, e, k)
		e.anew = r.poke
		os.s.wait.Go(func() { r.run(ctx) })
	default:
		f := follow.New(os.following(e, k))
		e.anew = f.Again
		os.s.wait.Go(func() { f.Run(ctx) })
	}
	return e
}

// maxAll is how many objects of a kind a cluster may have that a node is told of as a whole.
const maxAll = 100_000

// quickly is the pause before an object is asked for again that the server did not tell of at first: the authorizer
// hears of a new pod no sooner than the node does.
const quickly = 50 * time.Millisecond

func (os *objects) following(e *entry, k kind) follow.Config {
	t := follow.Target{Resource: k.resource, Namespace: e.ref.Namespace, List: k.list, Max: maxAll}
	if !k.all {
		t.Fields, t.Max, t.Early = fields.OneTermEqualSelector("metadata.name", e.ref.Name).String(), 1, true
	}
	pace := os.s.cfg.pace.follow
	if pace.First == 0 {
		pace.First = quickly
	}
	var client follow.Client = gated{os.s.cfg.Client, os.slots}
	if e.ref.Kind == object.ClusterTrustBundle {
		client = &bundles{Client: client}
	}
	return follow.Config{
		Client: client, Target: t, Sink: objectSink{os, e}, Pace: pace, Ready: os.s.reach.wait,
	}
}

// gated has only so many questions be open at once. What is watched is no question any more.
type gated struct {
	follow.Client
	slots chan struct{}
}

func (g gated) Watch(
	ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case g.slots <- struct{}{}:
	}
	defer func() { <-g.slots }()
	return g.Client.Watch(ctx, res, namespace, opts)
}

// objectSink takes what a watch on one object, or on all of a kind, tells.
type objectSink struct {
	of *objects
	e  *entry
}

func (o objectSink) All(objects []follow.Object) {
	o.do(func() {
		here := map[object.Ref]bool{}
		for _, one := range objects {
			if ref := o.refOf(one); o.concerns(ref) {
				here[ref] = true
				o.of.seen(o.e, ref, one)
			}
		}
		for ref := range maps.Clone(o.e.all) {
			if !here[ref] {
				o.of.gone(o.e, ref)
			}
		}
		if o.e.object != nil && !here[o.e.ref] {
			o.of.gone(o.e, o.e.ref)
		}
		if o.e.ref.Name == "" || o.e.object != nil || o.e.answered {
			o.of.settle(o.e)
			return
		}
		o.of.confirm(o.e)
	})
}

func (o objectSink) Changed(one follow.Object) {
	o.do(func() {
		if ref := o.refOf(one); o.concerns(ref) && o.of.seen(o.e, ref, one) && o.e.ref.Name != "" {
			o.of.settle(o.e)
		}
	})
}

func (o objectSink) Removed(one follow.Object) {
	o.do(func() {
		if ref := o.refOf(one); o.concerns(ref) && isOf(ref.Kind, one) {
			o.of.gone(o.e, ref)
		}
	})
}

func (o objectSink) Failed(err error) {
	if err != nil {
		o.do(func() { o.of.failed(o.e, err) })
	}
}

func (objectSink) Back(string, string) {}

// do is [Source.do] for an entry that is still wanted.
func (o objectSink) do(what func()) {
	o.of.s.do(func() {
		if o.of.entries[o.e.ref] == o.e {
			what()
		}
	})
}

func (o objectSink) refOf(one follow.Object) object.Ref {
	return object.RefTo(o.e.ref.Kind, one.GetNamespace(), one.GetName())
}

// concerns says whether an object was asked for: a server that does not know the selector has all. What has no name is
// no object.
func (o objectSink) concerns(ref object.Ref) bool {
	return ref.Name != "" && (o.e.ref.Name == "" || o.e.ref == ref)
}

// seen takes a state of an object; false: it could not be read.
func (os *objects) seen(e *entry, ref object.Ref, o object.Object) bool {
	if _, unread := o.(error); unread {
		os.s.unread(o)
		return false
	}
	if !isOf(ref.Kind, o) {
		os.s.once.warn("strange "+ref.String(), "API server tells of something else than an object that was asked for, which is as before",
			"object", shown(ref.String()), "type", fmt.Sprintf("%T", o), "uid", shown(string(o.GetUID())))
		return false
	}
	before := e.object
	if e.ref.Name == "" {
		before = e.all[ref]
	}
	if before != nil && versionOf(before) == versionOf(o) {
		return true
	}
	trim(o)
	typed(ref.Kind, o)
	if e.ref.Name == "" {
		if e.all == nil {
			e.all = map[object.Ref]object.Object{}
		}
		e.all[ref] = o
	} else {
		e.object = o
	}
	os.s.queue.put(desired.Update{Kind: ref.Kind, Key: ref.NamespacedName, Object: o}, versionOf(o))
	if before != nil {
		os.claimChanged(o)
	}
	if immutable(o) {
		e.stop()
	}
	if e.answered {
		os.lead(e)
	}
	return true
}

// claimChanged has the volume of a claim be read again: who makes a volume larger writes both, the claim last.
func (os *objects) claimChanged(o object.Object) {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName == "" {
		return
	}
	if e := os.entries[object.RefTo(object.PersistentVolume, "", c.Spec.VolumeName)]; e != nil {
		e.anew()
	}
}

// gone notes that there is no such object.
func (os *objects) gone(e *entry, ref object.Ref) {
	if e.ref.Name == "" {
		delete(e.all, ref)
	} else {
		e.object = nil
	}
	os.s.queue.put(desired.Update{Kind: ref.Kind, Key: ref.NamespacedName}, version{})
	if e.answered {
		os.lead(e)
	}
}

// confirm asks for an object that the server does not remember: it may not have heard yet of one that was made together
// with the pod. The store has the last word.
func (os *objects) confirm(e *entry) {
	r := newReader(os, e, kindOf(e.ref.Kind))
	os.s.wait.Go(func() {
		o, err := r.read(e.ctx)
		objectSink{os, e}.do(func() {
			if err == nil && e.object == nil {
				os.seen(e, e.ref, o)
			}
			os.settle(e)
		})
	})
}

// settle notes that the server has said what there is of an entry.
func (os *objects) settle(e *entry) {
	if e.answered {
		return
	}
	// What it leads to comes first, so that no pod goes between the two.
	e.answered = true
	if e.ref.Name == "" {
		os.s.queue.all(e.ref.Kind)
	}
	os.lead(e)
	os.s.answered(e)
}

// lead has the pods that refer to an object refer to what it leads to now.
func (os *objects) lead(e *entry) {
	if !leads(e.ref.Kind) {
		return
	}
	for key := range maps.Clone(e.users) {
		st := os.s.pods[key]
		os.s.hold(st, os.needs(st.pod))
		if len(st.lacks) == 0 && os.s.waiting.has(key) {
			os.s.offer(st)
		}
	}
}

// certain is how many refusals are no matter of an authorizer that has not heard of the pod yet.
const certain = 4

// objectFailed notes why the server does not tell of an object.
func (os *objects) failed(e *entry, err error) {
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsNotFound(err) {
		return
	}
	if e.refusals++; e.refusals < certain {
		return
	}
	what := e.ref.String()
	if e.ref.Name == "" {
		what = "all of " + kindOf(e.ref.Kind).resource.Resource
	}
	if e.refusals == certain {
		os.s.once.warn(what, "API server does not let the node have what a pod refers to, which waits for it", "object", what, "error", err)
	}
	os.settle(e)
}

// forget ends an entry that no pod refers to any more.
func (os *objects) forget(e *entry) {
	e.stop()
	delete(os.entries, e.ref)
	if e.ref.Name == "" {
		os.s.queue.none(e.ref.Kind)
	}
	for ref := range e.all {
		os.s.queue.put(desired.Update{Kind: ref.Kind, Key: ref.NamespacedName}, version{})
	}
	if e.object != nil {
		os.s.queue.put(desired.Update{Kind: e.ref.Kind, Key: e.ref.NamespacedName}, version{})
	}
}

// again has everything asked for anew.
func (os *objects) again() {
	for _, e := range os.entries {
		e.anew()
	}
}

// doubt has claims and their volumes be read again before a new pod has them, as by kubelet: somebody may have made
// them larger since, and the pod does not get them before the node has done its part.
func (os *objects) doubt(refs map[object.Ref]bool) {
	for ref := range refs {
		if ref.Kind != object.PersistentVolumeClaim && ref.Kind != object.PersistentVolume {
			continue
		}
		if e := os.entries[ref]; e != nil && e.answered {
			e.answered = false
			e.anew()
		}
	}
}

// readAgain has what a pod refers to be read again that is not watched.
func (os *objects) readAgain(st *podState) {
	for ref := range st.refs {
		if kindOf(ref.Kind).list == nil {
			os.entries[ref].anew()
		}
	}
}
