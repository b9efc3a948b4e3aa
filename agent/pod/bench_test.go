package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/volume"
)

// BenchmarkPod is what the agent itself takes to bring a pod up and to take it away, with a runtime that takes no time.
// "up" is from the update to the container's start.
func BenchmarkPod(b *testing.B) {
	root := b.TempDir()
	rt := newFake()
	m, err := New(Config{
		Runtime: rt, Cgroups: &fakeCgroups{pods: map[types.UID]bool{}}, Volumes: volume.New(volume.Config{Root: root}),
		Node: NodeConfig{Name: "node", IPs: func() []string { return []string{"192.0.2.1"} }}, RootDir: root, LogDir: filepath.Join(root, "logs"),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	updates, done := make(chan desired.Update), make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx, updates) }()
	defer func() { cancel(); <-done }()
	updates <- desired.Update{Synced: true}

	up, gone := make(chan time.Time, 1), make(chan struct{}, 1)
	go func() {
		last := ""
		_ = m.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
			if t == watch.Deleted {
				gone <- struct{}{}
			} else if p.Status.Phase == corev1.PodRunning && p.Name != last {
				last = p.Name
				up <- time.Now()
			}
			return nil
		})
	}()
	var total time.Duration
	n := 0
	for b.Loop() {
		n++
		p := podtest.New(fmt.Sprintf("p%d", n), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1)) })
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		began := time.Now()
		updates <- desired.Update{Key: key, Pod: p}
		total += (<-up).Sub(began)
		updates <- desired.Update{Key: key}
		<-gone
	}
	b.ReportMetric(float64(total.Microseconds())/float64(n), "up-µs/op")
}
