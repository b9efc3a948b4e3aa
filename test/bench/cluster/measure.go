package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

func (b *bench) measure(ctx context.Context, n node) (err error) {
	defer func() {
		if down := n.Down(); err == nil {
			err = down
		}
	}()
	log := filepath.Join(b.dir, n.Name()+".log")
	defer func() {
		if text, _ := os.ReadFile(log); err != nil {
			fmt.Fprintf(os.Stderr, "%s\n", text[max(0, len(text)-4000):])
		}
	}()
	if err := n.Up(ctx); err != nil {
		return err
	}
	if err := until(ctx, "the node is ready", func() error { return b.nodeReady(ctx, n) }); err != nil {
		return err
	}
	if b.whole {
		return workloads{b, n}.measure(ctx)
	}
	if err := b.single(ctx, n); err != nil {
		return err
	}
	return b.crowd(ctx, n)
}

func (b *bench) nodeReady(ctx context.Context, n node) error {
	found, err := b.client.CoreV1().Nodes().Get(ctx, n.Name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range found.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			_, err := b.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		}
	}
	return fmt.Errorf("its conditions are %v", found.Status.Conditions)
}

func (b *bench) pod(n node, name, dir string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName: n.Name(), TerminationGracePeriodSeconds: new(int64(30)),
			Volumes: []corev1.Volume{{Name: "b", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: "berth.test/busybox:1", ImagePullPolicy: corev1.PullNever,
				Command:      []string{"sh", "-c", "trap 'exit 0' TERM; : >/b/" + name + "; while :; do sleep 1000 & wait $!; done"},
				VolumeMounts: []corev1.VolumeMount{{Name: "b", MountPath: "/b"}},
			}},
		},
	}
}

// seen is what a watch has told of a pod, and when.
type seen struct {
	name        string
	ready, gone bool
	ended       bool
	at          time.Time
}

// follow tells of each pod that changes.
func (b *bench) follow(ctx context.Context) (<-chan seen, func(), error) {
	all := b.client.CoreV1().Pods("default")
	now, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	// A server that is short of time ends a watch; it is gone on with where it was.
	w, err := watchtools.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: all.Watch,
	})
	if err != nil {
		return nil, nil, err
	}
	out := make(chan seen, 1000)
	go func() {
		defer close(out)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				return
			}
			s := seen{name: p.Name, gone: e.Type == watch.Deleted, ended: p.Status.Phase == corev1.PodSucceeded, at: time.Now()}
			for _, c := range p.Status.Conditions {
				s.ready = s.ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}
			out <- s
		}
	}()
	return out, w.Stop, nil
}

// await waits until all of some pods are as is asked for, and returns when the last one was.
func await(ctx context.Context, from <-chan seen, names []string, is func(seen) bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	missing := map[string]bool{}
	for _, n := range names {
		missing[n] = true
	}
	for {
		select {
		case s, ok := <-from:
			if !ok {
				return time.Time{}, fmt.Errorf("the watch has ended, %d pods to go", len(missing))
			}
			if is(s) {
				delete(missing, s.name)
			}
			if len(missing) == 0 {
				return s.at, nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d pods to go: %w", len(missing), len(names), ctx.Err())
		}
	}
}

func ready(s seen) bool { return s.ready && !s.gone }
func gone(s seen) bool  { return s.gone }

// single is one pod after the other.
func (b *bench) single(ctx context.Context, n node) error {
	dir, err := os.MkdirTemp(b.dir, "markers-")
	if err != nil {
		return err
	}
	marks, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer marks.Close()
	if err := marks.Add(dir); err != nil {
		return err
	}
	pods, stop, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var running, told, away []float64
	const discarded = 3
	for i := range b.runs + discarded {
		// A node sends some eight requests a pod, and kubelet's default for its client is 50 a second: without a pause
		// each pod would wait for what is told of those before.
		time.Sleep(time.Second)
		name := fmt.Sprintf("%s-one-%d", n.Name(), i)
		begun := time.Now()
		if _, err := b.client.CoreV1().Pods("default").Create(ctx, b.pod(n, name, dir), metav1.CreateOptions{}); err != nil {
			return err
		}
		made, err := marked(marks.Events, name)
		if err != nil {
			return err
		}
		is, err := await(ctx, pods, []string{name}, ready)
		if err != nil {
			return err
		}
		deleted := time.Now()
		if err := b.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		end, err := await(ctx, pods, []string{name}, gone)
		if err != nil {
			return err
		}
		if i >= discarded {
			running, told = append(running, ms(made.Sub(begun))), append(told, ms(is.Sub(made)))
			away = append(away, ms(end.Sub(deleted)))
		}
	}
	b.figures.record(n, "bound -> running, median", "ms", median(running))
	b.figures.record(n, "running -> Ready in the API, median", "ms", median(told))
	b.figures.record(n, "deleted -> gone from the API, median", "ms", median(away))
	return nil
}

// marked waits until the process of a pod has made its file.
func marked(from <-chan fsnotify.Event, name string) (time.Time, error) {
	late := time.After(2 * time.Minute)
	for {
		select {
		case e := <-from:
			if filepath.Base(e.Name) == name {
				return time.Now(), nil
			}
		case <-late:
			return time.Time{}, fmt.Errorf("%s does not run", name)
		}
	}
}

// crowd is many pods at once.
func (b *bench) crowd(ctx context.Context, n node) error {
	dir, err := os.MkdirTemp(b.dir, "markers-")
	if err != nil {
		return err
	}
	pods, stop, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer stop()
	names := make([]string, b.many)
	for i := range names {
		names[i] = fmt.Sprintf("%s-many-%d", n.Name(), i)
	}
	before, err := b.count(ctx, n)
	if err != nil {
		return err
	}
	each := func(do func(name string) error) error {
		g := errgroup.Group{}
		g.SetLimit(20)
		for _, name := range names {
			g.Go(func() error { return do(name) })
		}
		return g.Wait()
	}
	profile := b.profile(ctx, n, "create")
	begun := time.Now()
	if err := each(func(name string) error {
		_, err := b.client.CoreV1().Pods("default").Create(ctx, b.pod(n, name, dir), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	created := time.Since(begun)
	last, err := await(ctx, pods, names, ready)
	if err != nil {
		return err
	}
	b.figures.record(n, fmt.Sprintf("%d created, by the client alone", b.many), "s", created.Seconds())
	b.figures.record(n, fmt.Sprintf("%d bound at once -> all Ready", b.many), "s", last.Sub(begun).Seconds())
	profile()
	if err := b.settled(ctx, n, "bound -> Ready", before); err != nil {
		return err
	}
	if err := b.idles(ctx, n); err != nil {
		return err
	}
	if before, err = b.count(ctx, n); err != nil {
		return err
	}
	profile = b.profile(ctx, n, "delete")
	begun = time.Now()
	if err := each(func(name string) error {
		return b.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
	}); err != nil {
		return err
	}
	if last, err = await(ctx, pods, names, gone); err != nil {
		return err
	}
	b.figures.record(n, fmt.Sprintf("%d deleted at once -> all gone", b.many), "s", last.Sub(begun).Seconds())
	profile()
	return b.settled(ctx, n, "deleted -> gone", before)
}

// settled counts when what comes after has come, too: events are written when there is time.
func (b *bench) settled(ctx context.Context, n node, phase string, before count) error {
	last, since := count{}, time.Now()
	for {
		now, err := b.count(ctx, n)
		if err != nil {
			return err
		}
		if now.requests["POST events"]+now.requests["PATCH events"]+now.requests["PATCH pods/status"] !=
			last.requests["POST events"]+last.requests["PATCH events"]+last.requests["PATCH pods/status"] {
			last, since = now, time.Now()
		} else if time.Since(since) > 2*time.Second {
			b.counted(n, phase, before, now, b.many)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// rests is how long a node has to come to rest.
const rests = 10 * time.Second

// idles counts what is written while nothing happens.
func (b *bench) idles(ctx context.Context, n node) error {
	if b.idle <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rests):
	}
	// Before the agent is asked for its own counters, which takes memory.
	if err := b.remembered(n, fmt.Sprintf("%d pods", b.many), n.Processes()["agent"]); err != nil {
		return err
	}
	b.heap(ctx, n)
	before, asked, err := b.idleCount(ctx, n)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.idle):
	}
	after, more, err := b.idleCount(ctx, n)
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(after.requests)) {
		// What is read is the control plane's own, mostly.
		if d := after.requests[what] - before.requests[what]; d > 0 && writes(what) {
			b.figures.record(n, fmt.Sprintf("idle for %s: %s", b.idle, what), "", d)
		}
	}
	if more > 0 {
		b.figures.record(n, fmt.Sprintf("idle for %s: requests of the node", b.idle), "", more-asked)
	}
	return nil
}

// idleCount is count with the requests that the node itself has counted, of the agent alone.
func (b *bench) idleCount(ctx context.Context, n node) (c count, asked float64, err error) {
	if c, err = b.count(ctx, n); err != nil {
		return c, 0, err
	}
	if a, is := n.(*agent); is {
		asked, err = a.asked(ctx)
	}
	return c, asked, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
