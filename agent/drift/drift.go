// Package drift sees when somebody changes a value of the cgroups of pods behind the agent's back, tells of it and
// corrects it.
package drift

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
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

// watchedGroup is what was done about a group.
type watchedGroup struct {
	doubt int           // told at the last look, if that found differences and left them; 0 otherwise
	told  string        // the last differences, until there are none: they are told once
	pause time.Duration // before the next correction, longer each time that somebody insists
	calm  time.Time     // the end of that
}

type podChange struct {
	kind watch.EventType
	pod  *corev1.Pod
}

// persist runs what is to run until ctx ends, and runs it again some time after it has ended before: longer each time,
// up to seldom, and told once as long as the cause is the same. What has run for longer than it was waited for begins
// again with the first pause.
func persist(
	ctx context.Context, pause time.Duration, log *slog.Logger, without string, run func(context.Context) error,
) {
	wait, told := pause, ""
	for {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > wait {
			wait, told = pause, ""
		}
		if text := err.Error(); text != told {
			told = text
			log.Error(without, "error", err, "again", wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, seldom)
	}
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

// together runs parts that are of no use without each other: when one ends, all do. It returns why the first one did.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error {
			if err := part(ctx); err != nil {
				return err
			}
			return errors.New("ended by itself")
		})
	}
	return g.Wait()
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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

func (d *drift) compareDue() {
	now := time.Now()
	for uid, at := range d.due {
		if at.After(now) {
			continue
		}
		delete(d.due, uid)
		w := d.pods[uid]
		if err := d.compare(w); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.logger(w).Warn("groups are not compared", "error", err)
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

// compare compares all groups of a pod with what they should have. The pod's own comes first: in v1 no group may have
// more of the CPU than its parent.
func (d *drift) compare(w *watched) error {
	if w.pod == nil {
		return d.cfg.Classes.Given(func(given []kube.Wanted) error { return d.compareWith(w, given) })
	}
	if resizing(w.pod) {
		return nil // the pod changes again when that is done
	}
	wanted, err := d.wanted(w.pod)
	if err != nil {
		return err
	}
	return d.compareWith(w, wanted)
}

func (d *drift) compareWith(w *watched, wanted []kube.Wanted) error {
	here := map[string]bool{}
	for _, want := range wanted {
		here[want.Path] = true
		g := w.groups[want.Path]
		if g == nil {
			g = &watchedGroup{}
			w.groups[want.Path] = g
		}
		// Watched first, so that no write falls between the look and the watch.
		if err := d.changes.Add(want.Path); err != nil {
			d.cfg.Log.Debug("a group is compared now and then only", "group", want.Path, "error", err)
		}
		diffs, err := d.cfg.Tree.Drift(want)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it ends just now
		case err != nil:
			return err
		default:
			d.act(w, want, g, diffs)
		}
	}
	for group := range w.groups {
		if !here[group] {
			d.changes.Remove(group)
			delete(w.groups, group)
		}
	}
	return nil
}

// wanted is what the pod's group and those of its containers should have: by what the containers were given last.
func (d *drift) wanted(pod *corev1.Pod) ([]kube.Wanted, error) {
	pod = asGiven(pod)
	tree := d.cfg.Tree
	if d.cfg.Pins.Exclusive(pod.UID) {
		tree = d.cfg.Unlimited
	}
	out := []kube.Wanted{tree.WantedOfPod(pod)}
	groups, err := d.cfg.Tree.ContainerGroups(pod)
	if err != nil {
		return nil, err
	}
	ids := runningIDs(pod)
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if group, ok := groups[ids[c.Name]]; ok {
				out = append(out, d.cfg.Tree.WantedOfContainer(group, pod, c, d.cfg.Pins.Pin(pod.UID, c.Name)))
			}
		}
	}
	return out, nil
}

// act tells of differences, and corrects them if that is the policy.
func (d *drift) act(w *watched, want kube.Wanted, g *watchedGroup, diffs []kube.Difference) {
	if len(diffs) == 0 {
		g.doubt, g.told = 0, ""
		return
	}
	now := time.Now()
	if d.cfg.Correct && now.Before(g.calm) {
		d.soon(w.uid(), g.calm)
		return
	}
	var text []string
	for _, x := range diffs {
		text = append(text, fmt.Sprintf("%s is %s, should be %s (%s)", x.File, x.Found, x.Want, x.Field))
	}
	message := fmt.Sprintf("Group %s: %s", want.Path, strings.Join(text, ", "))
	if g.doubt != w.told {
		// It may be a resize that has begun since the pod was heard of. Then there is another version of it at the next
		// look.
		g.doubt = w.told
		d.soon(w.uid(), now)
		return
	}
	if d.cfg.Correct {
		g.doubt = 0
		if now.Sub(g.calm) > sweepEach {
			g.pause = 0
		}
		g.pause = min(max(2*g.pause, settle), maxCalm)
		g.calm = now.Add(g.pause)
		if err := d.cfg.Tree.Correct(want); err != nil {
			message += "; it cannot be corrected: " + err.Error()
		} else {
			message += "; corrected"
		}
	} else if message == g.told {
		return
	}
	g.told = message
	if w.pod == nil {
		d.cfg.Events.Node(corev1.EventTypeWarning, reason, "%s", message)
	} else {
		d.cfg.Events.Event(w.pod, corev1.EventTypeWarning, reason, "%s", message)
	}
	d.logger(w).Warn("a group has not what it should have", "difference", message)
}

// runningState changes whenever a pod's groups may have to be looked at again.
func runningState(pod *corev1.Pod) string {
	return fmt.Sprint(pod.Generation, resizing(pod), runningIDs(pod))
}

func resizing(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizeInProgress && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// asGiven is the pod with the resources that its containers have, where a resize that is wanted is deferred.
func asGiven(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	if out.Status.Resources != nil {
		out.Spec.Resources = out.Status.Resources
	}
	for _, list := range [][]corev1.ContainerStatus{out.Status.InitContainerStatuses, out.Status.ContainerStatuses} {
		for i := range list {
			if c := findContainer(out, list[i].Name); c != nil && list[i].Resources != nil {
				c.Resources = *list[i].Resources
			}
		}
	}
	return out
}

func runningIDs(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && list[i].State.Running != nil {
				out[list[i].Name] = id
			}
		}
	}
	return out
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
