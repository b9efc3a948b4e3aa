package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/controller"
)

const (
	// orphansAtOnce is how many dependents of one owner are orphaned at a time.
	orphansAtOnce = 8
	// lookAgain is when an owner is looked for again whose kind nobody watches.
	lookAgain = time.Minute
	// absences is how many owners are known not to be: all that one object may refer to, and some.
	absences = 20_000
)

// cluster is what the collector acts on.
type cluster interface {
	// kind says whether a kind is served, and whether its objects are in namespaces.
	kind(schema.GroupKind) (namespaced, served bool)
	// get reads an object from where it is, whatever its UID is.
	get(context.Context, place) (*metav1.PartialObjectMetadata, error)
	// patch merges into the metadata of one version of an object.
	patch(context.Context, thing, map[string]any) error
	// remove deletes one version of an object.
	remove(ctx context.Context, t thing, version string, policy metav1.DeletionPropagation) error
	// refuse tells of a reference that is to nothing that may be an owner.
	refuse(t thing, r metav1.OwnerReference)
	// complete says whether all dependents that there are can be known.
	complete() bool
}

// collector brings objects where their owners have them be. It decides by what it reads from the API at that moment,
// and writes only to the version that it has read.
type collector struct {
	graph   *graph
	cluster cluster
	look    func(types.UID)
	atOnce  int // dependents of one owner that are orphaned

	mu     sync.Mutex
	absent map[thing]struct{}
}

func newCollector(g *graph, c cluster, look func(types.UID)) *collector {
	return &collector{graph: g, cluster: c, look: look, atOnce: orphansAtOnce, absent: map[thing]struct{}{}}
}

func (c *collector) tell(all []types.UID) {
	for _, uid := range all {
		c.look(uid)
	}
}

// sync implements [controller.Sync].
func (c *collector) sync(ctx context.Context, uid types.UID) (time.Duration, error) {
	o, idle, virtual, is := c.graph.known(uid)
	if !is || idle {
		return 0, nil
	}
	if namespaced, served := c.cluster.kind(o.kind.Value()); !served && virtual {
		return 0, nil // who refers to it says of what kind it is: it is looked at when there is such a kind
	} else if !served {
		return 0, fmt.Errorf("find kind of %s: %w", o.thing, errUnknown)
	} else if !namespaced {
		o.namespace = none
	} else if o.namespace == none {
		return 0, nil // it is in some namespace, and its dependent in none: the dependent has been told so
	}
	if virtual && c.was(o.thing) {
		c.tell(c.graph.missing(uid))
		return 0, nil
	}
	live, err := c.cluster.get(ctx, o.place)
	if apierrors.IsNotFound(err) || err == nil && live.UID != uid {
		c.never(o.thing)
		c.tell(c.graph.missing(uid))
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", o.thing, err)
	}
	now := objectOf(o.kind, live)
	c.tell(c.graph.update(now))
	if err := c.settle(ctx, now, live); err != nil || !virtual {
		return 0, err
	}
	return lookAgain, nil
}

// errUnknown says that a kind is not served, or not yet: what is of it may still be.
var errUnknown = fmt.Errorf("no resource is of this kind: %w", controller.ErrWait)

func (c *collector) settle(ctx context.Context, o object, live *metav1.PartialObjectMetadata) error {
	switch {
	case o.deleting && o.orphans:
		return c.orphan(ctx, o, live)
	case o.deleting && o.foreground:
		return c.wait(ctx, o, live)
	case o.deleting || len(o.owners) == 0:
		return nil
	}
	refs, err := c.classify(ctx, o, live.OwnerReferences)
	if err != nil || refs.refused || refs.unserved {
		return err
	}
	switch {
	case len(refs.solid) > 0:
		c.graph.relink(o.uid)
		if len(refs.solid) == len(live.OwnerReferences) {
			return nil
		}
		return c.cluster.patch(ctx, o.thing, owned(live, refs.solid))
	case refs.waiting:
		any, circle := c.graph.has(o.uid)
		if !any {
			break
		}
		if circle {
			// The one that it waits for waits for it, too.
			if changed, err := c.unblock(ctx, o.thing, live, ""); changed || err != nil {
				c.look(o.uid)
				return err
			}
		}
		return c.cluster.remove(ctx, o.thing, live.ResourceVersion, metav1.DeletePropagationForeground)
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case o.orphans:
		policy = metav1.DeletePropagationOrphan
	case o.foreground:
		policy = metav1.DeletePropagationForeground
	}
	return c.cluster.remove(ctx, o.thing, live.ResourceVersion, policy)
}

// references are those of an object by what they refer to.
type references struct {
	solid   []metav1.OwnerReference
	waiting bool // an owner waits for its dependents
	refused bool // no owner can be where one is said to be: nobody knows whether the object is wanted
	// unserved says that an owner is of a kind that is not served. Anybody may refer to any number of kinds, so that
	// this is not tried again and again, but when there is another kind.
	unserved bool
}

func (c *collector) classify(ctx context.Context, o object, all []metav1.OwnerReference) (references, error) {
	var refs references
	owners := make([]thing, len(all))
	spaced := make([]bool, len(all))
	// Nothing is read where what is read would decide nothing: where one owner of an object is of a kind that is not
	// served, the others may be as many as fit into it.
	for i, r := range all {
		namespaced, served := c.cluster.kind(groupKind(r))
		if !served {
			refs.unserved = true
			return refs, nil
		}
		owners[i], spaced[i] = thing{place{unique.Make(groupKind(r)), o.namespace, r.Name}, r.UID}, namespaced
		if !namespaced {
			owners[i].namespace = none
		} else if o.namespace == none {
			c.cluster.refuse(o.thing, r)
			refs.refused = true
		}
	}
	if refs.refused {
		return refs, nil
	}
	seen := map[place]object{}
	for i, r := range all {
		is, waits, err := c.is(ctx, owners[i], seen)
		switch {
		case err != nil:
			return refs, fmt.Errorf("find owner %s %s of %s: %w", r.Kind, r.Name, o.thing, err)
		case !is && spaced[i] && c.graph.elsewhere(r.UID, o.namespace):
			c.cluster.refuse(o.thing, r)
		case !is:
		case waits:
			refs.waiting = true
		default:
			refs.solid = append(refs.solid, r)
		}
	}
	return refs, nil
}

// is says whether there is an owner, and whether it waits for its dependents. What is no more is never again. seen is
// what was read in this look, where thousands of references may be to one place.
func (c *collector) is(ctx context.Context, t thing, seen map[place]object) (is, waits bool, err error) {
	if c.was(t) {
		return false, false, nil
	}
	o, read := seen[t.place]
	if !read {
		live, err := c.cluster.get(ctx, t.place)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, false, err
		}
		if err == nil {
			o = objectOf(t.kind, live)
			o.owners = nil
		}
		seen[t.place] = o
	}
	if o.uid != t.uid {
		c.never(t)
		return false, false, nil
	}
	return true, o.waits(), nil
}

// was says whether an object is known not to be any more.
func (c *collector) was(t thing) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, absent := c.absent[t]
	return absent
}

func (c *collector) never(t thing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.absent) >= absences {
		for one := range c.absent {
			delete(c.absent, one) // any
			break
		}
	}
	c.absent[t] = struct{}{}
}

// wait lets an object go that nobody keeps any more.
func (c *collector) wait(ctx context.Context, o object, live *metav1.PartialObjectMetadata) error {
	open, waiting := c.graph.blocking(o.uid)
	for _, d := range open {
		c.look(d.uid)
	}
	if len(open) > 0 {
		return nil
	}
	var circle map[types.UID]bool
	if len(waiting) > 0 {
		circle = c.graph.circle(o.uid)
	}
	for _, d := range waiting {
		if !circle[d.uid] {
			continue
		}
		there, err := c.cluster.get(ctx, d.place)
		if apierrors.IsNotFound(err) || err == nil && there.UID != d.uid {
			c.tell(c.graph.gone(d.uid))
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", d, err)
		}
		if _, err := c.unblock(ctx, d, there, o.uid); err != nil {
			return err
		}
	}
	if len(waiting) > 0 {
		return nil
	}
	if !c.cluster.complete() {
		return fmt.Errorf("release %s: %w", o.thing, controller.ErrWait)
	}
	return c.release(ctx, o.thing, live, metav1.FinalizerDeleteDependents)
}

// orphan has the dependents of an object forget it, and then lets it go.
func (c *collector) orphan(ctx context.Context, o object, live *metav1.PartialObjectMetadata) error {
	// A dependent that is not known would be deleted when its owner is gone.
	if !c.cluster.complete() {
		return fmt.Errorf("orphan dependents of %s: %w", o.thing, controller.ErrWait)
	}
	dependents := c.graph.dependents(o.uid)
	failed := make([]error, len(dependents))
	turn := make(chan struct{}, c.atOnce)
	var group sync.WaitGroup
	for i, d := range dependents {
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			failed[i] = controller.Safely(func() error { return c.disown(ctx, d, o.uid) })
		})
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("orphan dependents of %s: %w", o.thing, err)
	}
	return c.release(ctx, o.thing, live, metav1.FinalizerOrphanDependents)
}

// disown has an object forget an owner.
func (c *collector) disown(ctx context.Context, d thing, of types.UID) error {
	live, err := c.cluster.get(ctx, d.place)
	if apierrors.IsNotFound(err) || err == nil && live.UID != d.uid {
		c.tell(c.graph.gone(d.uid))
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", d, err)
	}
	left := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == of })
	if len(left) == len(live.OwnerReferences) {
		return nil
	}
	return c.cluster.patch(ctx, d, owned(live, left))
}

// unblock has an object keep an owner no longer, or any of its owners where none is named.
func (c *collector) unblock(ctx context.Context, d thing, live *metav1.PartialObjectMetadata, from types.UID) (changed bool, err error) {
	refs := slices.Clone(live.OwnerReferences)
	for i, r := range refs {
		if (from == "" || r.UID == from) && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion {
			refs[i].BlockOwnerDeletion, changed = new(bool), true
		}
	}
	if !changed {
		return false, nil
	}
	return true, c.cluster.patch(ctx, d, owned(live, refs))
}

// release takes a finalizer away.
func (c *collector) release(ctx context.Context, t thing, live *metav1.PartialObjectMetadata, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	return c.cluster.patch(ctx, t, map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion, "finalizers": left})
}

func owned(live *metav1.PartialObjectMetadata, refs []metav1.OwnerReference) map[string]any {
	return map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion, "ownerReferences": refs}
}

// String is how the log names an object.
func (t thing) String() string {
	kind, name := t.kind.Value(), t.name
	if namespace := t.namespace.Value(); namespace != "" {
		name = namespace + "/" + name
	}
	return kind.String() + " " + name
}
