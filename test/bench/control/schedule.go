package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// important is the class of pods that others make room for.
	important = "important"
	// bindLimit bounds how long nothing is bound.
	bindLimit = 5 * time.Minute
	// disturbance is how often a pod is made that disturbs, as in scheduler_perf.
	disturbance = 200 * time.Millisecond
	// before is what pods begin their names with that are there first, and measured those that are measured.
	before, measured = "b-", "m-"
)

// many has several clients do something for each number, each by a connection of its own.
func (p *plane) many(ctx context.Context, count int, do func(ctx context.Context, c kubernetes.Interface, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range clients {
		c, err := p.another(n)
		if err != nil {
			return err
		}
		group.Go(func() error {
			for i := n; i < count; i += clients {
				if err := do(ctx, c, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// furnish makes what a workload needs beside pods.
func (p *plane) furnish(ctx context.Context, w workload) error {
	spaces := []string{one, other}
	for i := range w.spaces {
		spaces = append(spaces, fmt.Sprint("space-", i))
	}
	for _, name := range spaces {
		if err := p.space(ctx, metav1.ObjectMeta{Name: name, Labels: spaceLabels()}); err != nil {
			return err
		}
	}
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: important}, Value: 10}
	if _, err := p.client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	if w.service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "light"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "light"}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		if _, err := p.client.CoreV1().Services(one).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return p.makeNodes(ctx, w)
}

// makeNodes makes the nodes of a workload.
func (p *plane) makeNodes(ctx context.Context, w workload) error {
	return p.many(ctx, w.nodes, func(ctx context.Context, c kubernetes.Interface, i int) error {
		want := w.makeNode(i)
		n, err := c.CoreV1().Nodes().Create(ctx, want, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		// Admission taints each new node until a controller has seen it ready; there is none, or it writes to it, too.
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": want.Spec.Taints}})
		if err == nil {
			_, err = c.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	})
}

func (p *plane) fill(ctx context.Context, name string, count int, how func(int, *corev1.Pod)) error {
	return p.many(ctx, count, func(ctx context.Context, c kubernetes.Interface, i int) error {
		o := makePod(name, i, how)
		_, err := c.CoreV1().Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

// bindings tells of pods when they have a node.
type bindings struct {
	w *watchtools.RetryWatcher
	// had is how many pods that are measured had a node before.
	had int
	// began and ended are when the first and the last of those that were waited for had one.
	began, ended time.Time
	// first is called with the first.
	first func()
}

// watchBindings watches pods that have a node, and no others. A server that is short of time ends a watch; it is gone
// on with where it was.
func (p *plane) watchBindings(ctx context.Context) (*bindings, error) {
	all, bound := p.client.CoreV1().Pods(metav1.NamespaceAll), "spec.nodeName!="
	now, err := all.List(ctx, metav1.ListOptions{FieldSelector: bound})
	if err != nil {
		return nil, err
	}
	b := &bindings{}
	for i := range now.Items {
		if strings.HasPrefix(now.Items[i].Name, measured) {
			b.had++
		}
	}
	b.w, err = watchtools.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = bound
			return all.Watch(ctx, o)
		},
	})
	return b, err
}

// await returns when so many pods whose names begin with something have a node.
func (b *bindings) await(ctx context.Context, name string, count int, each func(*corev1.Pod)) error {
	limit := time.NewTimer(bindLimit)
	defer limit.Stop()
	for seen := 0; seen < count; {
		select {
		case e, ok := <-b.w.ResultChan():
			p, is := e.Object.(*corev1.Pod)
			if !ok || !is && e.Type != watch.Bookmark {
				return fmt.Errorf("watch pods: it has ended after %d of %d: %v", seen, count, e.Object)
			}
			if e.Type != watch.Added || !strings.HasPrefix(p.Name, name) {
				continue
			}
			b.ended = time.Now()
			if seen++; seen == 1 {
				b.began = b.ended
				if b.first != nil {
					b.first()
				}
			}
			if each != nil {
				each(p)
			}
			limit.Reset(bindLimit)
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("wait for bindings: %d of %d pods have a node", seen, count)
		}
	}
	return nil
}

// prepare makes the nodes of a workload, and the pods that are there before, which it has bound.
func (p *plane) prepare(ctx context.Context, w workload) error {
	if err := p.furnish(ctx, w); err != nil {
		return err
	}
	b, err := p.watchBindings(ctx)
	if err != nil {
		return err
	}
	defer b.w.Stop()
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return p.fill(inner, before, w.before, w.first) })
	group.Go(func() error { return b.await(inner, before, w.before, nil) })
	return group.Wait()
}

// schedules is how many pods of a workload get a node in a second while they are created.
func schedules(ctx context.Context, c config, w workload, start starter, dir string) ([]figure, error) {
	c.scheduler = true
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	if err := p.prepare(ctx, w); err != nil {
		return nil, err
	}
	b, err := p.watchBindings(ctx)
	if err != nil {
		return nil, err
	}
	defer b.w.Stop()
	stop, err := p.disturb(ctx, w)
	if err != nil {
		return nil, err
	}
	used, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	end, began := p.profile(ctx, w.name), time.Now()
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return p.fill(inner, measured, w.pods, w.measured) })
	group.Go(func() error { return b.await(inner, measured, w.pods, nil) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	cost, err := p.processes.since(used)
	if err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	return []figure{
		{w.title("pods created and bound"), "/s", float64(w.pods) / b.ended.Sub(began).Seconds()},
		{w.name + ": CPU time of one", "ms", cost / float64(w.pods)},
	}, end()
}

// binds is how many pods of a workload that wait get a node in a second: nobody creates any meanwhile. For that the
// control plane is started anew, without its scheduler and again with it.
func binds(ctx context.Context, c config, w workload, start starter, dir string) ([]figure, error) {
	stages := []struct {
		scheduler bool
		do        func(p *plane) error
	}{
		{true, func(p *plane) error { return p.prepare(ctx, w) }},
		{false, func(p *plane) error { return p.fill(ctx, measured, w.pods, w.measured) }},
	}
	for _, s := range stages {
		c.scheduler = s.scheduler
		p, err := start(ctx, c, dir)
		if err != nil {
			return nil, err
		}
		err = s.do(p)
		p.processes.stop()
		if err != nil {
			return nil, err
		}
	}
	c.scheduler = true
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	b, err := p.watchBindings(ctx)
	if err != nil {
		return nil, err
	}
	defer b.w.Stop()
	var used time.Duration
	end := func() error { return nil }
	b.first = func() { used, err = p.processes.cpu(); end = p.profile(ctx, w.name+"-bind") }
	left := w.pods - b.had
	if left < w.pods/2 {
		return nil, fmt.Errorf("watch pods: %d of %d have a node when it begins: measure more", b.had, w.pods)
	}
	if failed := b.await(ctx, measured, left, nil); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	cost, err := p.processes.since(used)
	if err != nil {
		return nil, err
	}
	return []figure{
		{w.title("waiting pods bound"), "/s", float64(left-1) / b.ended.Sub(b.began).Seconds()},
		{w.name + ": CPU time of one", "ms", cost / float64(left-1)},
	}, end()
}

// disturb makes pods that the scheduler has more to do with, until the end is called.
func (p *plane) disturb(ctx context.Context, w workload) (end func() error, err error) {
	if w.disturbs == nil {
		return func() error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		tick := time.NewTicker(disturbance)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				failed <- nil
				return
			case <-tick.C:
			}
			o := makePod("d-", i, func(_ int, p *corev1.Pod) { w.disturbs(p) })
			if _, err := p.client.CoreV1().Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
		}
	}()
	return func() error { cancel(); return <-failed }, nil
}
