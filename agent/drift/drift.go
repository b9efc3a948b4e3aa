// Package drift sees when somebody changes a value of the cgroups of pods behind the agent's back, tells of it and
// corrects it.
package drift

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

const (
	settle    = 500 * time.Millisecond // our own writes are followed by the pod that says so
	maxCalm   = time.Minute            // how long somebody who goes on changing a value is let be at most
	sweepEach = 10 * time.Minute       // how often everything is compared, should the kernel have lost a write
	// Until it is tried again, when the kernel cannot tell of writes; twice as long each time.
	again  = 30 * time.Second
	seldom = 30 * time.Minute // at most
	reason = "CgroupChanged"
)

// theNode is the node itself among the pods: its groups are those of all pods together and of the classes.
const theNode types.UID = ""

// Pods are the pods whose groups are watched.
type Pods interface {
	// Watch calls fn with every pod there is, then with every change, until ctx ends or fn fails.
	Watch(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error
}

// Pins say which CPUs and memory containers have for themselves.
type Pins interface {
	Exclusive(types.UID) bool
	Pin(uid types.UID, container string) kube.Pin
}

// Events is where changes are told.
type Events interface {
	Event(pod *corev1.Pod, typ, reason, format string, args ...any)
	Node(typ, reason, format string, args ...any)
}

// Classes are the groups of all pods together and of the classes.
type Classes interface {
	// Given calls fn with what they were given last. They do not change meanwhile.
	Given(fn func([]kube.Wanted) error) error
	// Changed has one when they were given something else.
	Changed() <-chan struct{}
}

// Config is what a [Watch] works with. All of it is required.
type Config struct {
	Tree      *kube.Tree
	Unlimited *kube.Tree // of pods with CPUs of their own
	Correct   bool       // else a change is told only
	Pods      Pods
	Pins      Pins
	Classes   Classes
	Events    Events
	Log       *slog.Logger
}

// Watch runs until ctx ends. That the kernel cannot tell of changes, for want of an inotify instance say, is no reason
// to end the agent: it is said, and tried again.
func Watch(ctx context.Context, c Config) {
	watch := func(ctx context.Context) error { return watchOnce(ctx, c) }
	persist(ctx, again, c.Log, "changes of the groups of pods are not seen", watch)
}

// drift sees when somebody changes a value of a pod's groups, or of those that they are in. The kernel tells of every
// write, ours too, so each leads to a comparison with what the group should have by now. One goroutine has all of its
// state.
type drift struct {
	cfg     Config
	changes *cgroups.Changes
	pods    map[types.UID]*watched
	due     map[types.UID]time.Time
}

// watched is a pod whose groups are watched.
type watched struct {
	pod    *corev1.Pod // nil: the node
	told   int         // how often something was told of it; 1 of the node
	state  string      // what ran, and with what, when it was looked at
	groups map[string]*watchedGroup
}

func (w *watched) uid() types.UID {
	if w.pod == nil {
		return theNode
	}
	return w.pod.UID
}

type podChange struct {
	kind watch.EventType
	pod  *corev1.Pod
}

// watchOnce runs until ctx ends, or one of what it hears by.
func watchOnce(ctx context.Context, c Config) error {
	changes, err := c.Tree.Changes()
	if err != nil {
		return err
	}
	defer changes.Close()
	d := &drift{cfg: c, changes: changes, pods: map[types.UID]*watched{}, due: map[types.UID]time.Time{}}
	d.pods[theNode] = &watched{told: 1, groups: map[string]*watchedGroup{}}
	pods, groups := make(chan podChange), make(chan string)
	return together(ctx, func(ctx context.Context) error {
		return c.Pods.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error { return send(ctx, pods, podChange{t, p}) })
	}, func(ctx context.Context) error {
		return changes.Run(ctx, func(group, _ string) { _ = send(ctx, groups, group) })
	}, func(ctx context.Context) error {
		d.run(ctx, pods, groups)
		return nil
	})
}

func (d *drift) run(ctx context.Context, pods <-chan podChange, groups <-chan string) {
	sweep := time.NewTicker(sweepEach)
	defer sweep.Stop()
	timer := time.NewTimer(sweepEach)
	defer timer.Stop()
	for {
		if len(d.due) > 0 {
			next := slices.MinFunc(slices.Collect(maps.Values(d.due)), time.Time.Compare)
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return
		case c := <-pods:
			d.see(c)
		case <-d.cfg.Classes.Changed():
			d.soon(theNode, time.Now())
		case group := <-groups:
			d.written(group)
		case <-sweep.C:
			d.written("")
		case <-timer.C:
			d.compareDue()
		}
	}
}

// see takes note of a pod as it is now. Its groups are looked at when it has settled.
func (d *drift) see(c podChange) {
	uid := c.pod.UID
	w := d.pods[uid]
	if c.kind == watch.Deleted {
		if w != nil {
			for group := range w.groups {
				d.changes.Remove(group)
			}
		}
		delete(d.pods, uid)
		delete(d.due, uid)
		return
	}
	if w == nil {
		w = &watched{groups: map[string]*watchedGroup{}}
		d.pods[uid] = w
	}
	w.pod = c.pod
	w.told++
	if state := runningState(c.pod); c.pod.Status.Phase == corev1.PodRunning && state != w.state {
		w.state = state
		d.soon(uid, time.Now())
	}
}

// soon has a pod compared when it has settled, or when those who insist were let be for long enough.
func (d *drift) soon(uid types.UID, calm time.Time) {
	at := time.Now().Add(settle)
	if calm.After(at) {
		at = calm
	}
	if had, ok := d.due[uid]; !ok || at.Before(had) {
		d.due[uid] = at
	}
}

// written marks the pod of a group to be compared; "" is every pod.
func (d *drift) written(group string) {
	for uid, w := range d.pods {
		if group == "" {
			d.soon(uid, time.Now())
		} else if g := w.groups[group]; g != nil {
			d.soon(uid, g.calm)
			return
		}
	}
}

// logger is for what is said of a pod.
func (d *drift) logger(w *watched) *slog.Logger {
	if w.pod == nil {
		return d.cfg.Log
	}
	return d.cfg.Log.With("pod", w.pod.Namespace+"/"+w.pod.Name, "uid", string(w.pod.UID))
}
