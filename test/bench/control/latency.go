package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	quietNodes = 1000
	quietPods  = 3000
	// apace is from one creation to the next: 100 pods a second.
	apace = 10 * time.Millisecond
)

// latency is how long it takes from the request that creates a pod until a watch tells of its node, and from the answer
// to that request, while 100 are created each second.
func latency(ctx context.Context, c config, start starter, dir string) ([]figure, error) {
	c.scheduler = true
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	if err := p.prepare(ctx, workload{nodes: quietNodes, before: 500}); err != nil {
		return nil, err
	}
	b, err := p.watchBindings(ctx)
	if err != nil {
		return nil, err
	}
	defer b.w.Stop()
	var mu sync.Mutex
	asked, answered, bound := map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
	note := func(of map[string]time.Time, name string) {
		mu.Lock()
		defer mu.Unlock()
		of[name] = time.Now()
	}
	used, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	end := p.profile(ctx, "latency")
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return b.await(inner, measured, quietPods, func(p *corev1.Pod) { note(bound, p.Name) }) })
	tick := time.NewTicker(apace)
	defer tick.Stop()
	for i := range quietPods {
		<-tick.C
		group.Go(func() error {
			o := makePod(measured, i, nil)
			note(asked, o.Name)
			_, err := p.client.CoreV1().Pods(o.Namespace).Create(inner, o, metav1.CreateOptions{})
			note(answered, o.Name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	cost, err := p.processes.since(used)
	if err != nil {
		return nil, err
	}
	all := spans("100 pods/s: created until bound", asked, bound)
	all = append(all, spans("100 pods/s: answered until bound", answered, bound)...)
	all = append(all, spans("100 pods/s: created until answered", asked, answered)...)
	return append(all, figure{"100 pods/s: CPU time of one", "ms", cost / quietPods}), end()
}

func spans(name string, from, to map[string]time.Time) []figure {
	var took []float64
	for which, at := range to {
		took = append(took, at.Sub(from[which]).Seconds()*1000)
	}
	slices.Sort(took)
	return []figure{
		{name + ": median", "ms", took[len(took)/2]},
		{name + ": p99", "ms", took[len(took)*99/100]},
	}
}

const (
	kept    = 6000 // of what is in the namespace that is deleted: ConfigMaps,
	secrets = 2000
	waiting = 2000 // and pods that have no node
)

// emptied is how long it takes to delete a namespace with 10,000 objects, while all controllers run.
func emptied(ctx context.Context, c config, start starter, dir string) ([]figure, error) {
	c.controllers, c.scheduler = true, false
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	if err := p.furnish(ctx, workload{}); err != nil {
		return nil, err
	}
	if err := p.stock(ctx); err != nil {
		return nil, err
	}
	if err := wait(ctx, 10*time.Second); err != nil { // what follows so many objects
		return nil, err
	}
	all := p.client.CoreV1().Namespaces()
	w, err := all.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + one})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	used, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	end, began := p.profile(ctx, "emptied"), time.Now()
	if err := all.Delete(ctx, one, metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	limit := time.After(bindLimit)
	for gone := false; !gone; {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil, errors.New("watch namespaces: it has ended")
			}
			gone = e.Type == watch.Deleted
		case <-limit:
			return nil, fmt.Errorf("wait for the end of a namespace: it is there after %s", bindLimit)
		}
	}
	took := time.Since(began)
	cost, err := p.processes.since(used)
	if err != nil {
		return nil, err
	}
	return []figure{
		{"a namespace with 10,000 objects is gone", "s", took.Seconds()},
		{"a namespace with 10,000 objects: CPU time", "s", cost / 1000},
	}, end()
}

// stock fills the namespace that is deleted.
func (p *plane) stock(ctx context.Context) error {
	err := p.many(ctx, kept+secrets, func(ctx context.Context, c kubernetes.Interface, i int) error {
		named := metav1.ObjectMeta{Name: fmt.Sprint("o-", i)}
		if i < kept {
			_, err := c.CoreV1().ConfigMaps(one).Create(ctx, &corev1.ConfigMap{ObjectMeta: named}, metav1.CreateOptions{})
			return err
		}
		_, err := c.CoreV1().Secrets(one).Create(ctx, &corev1.Secret{ObjectMeta: named}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return p.fill(ctx, measured, waiting, nil)
}
