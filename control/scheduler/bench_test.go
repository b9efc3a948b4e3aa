package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/config"
	"github.com/berth-node/berth/control/scheduler/plugin/defaultbinder"
	"github.com/berth-node/berth/control/scheduler/registry"
)

// bench is a scheduler without an API server: what it binds is told of as a watch would.
type bench struct {
	s     *Scheduler
	mu    sync.Mutex
	made  map[types.UID]time.Time
	took  []time.Duration
	all   sync.WaitGroup
	count int
	// change has new pods be another way.
	change func(pod *corev1.Pod)
	// groups and pods are what the API has of them.
	groups, pods cache.Indexer
	// write binds a pod instead, and says whether the scheduler hears of it at once.
	write func(pod *corev1.Pod) (tell bool, err error)
	// informers have what there is of other kinds.
	informers informers.SharedInformerFactory
}

// binder binds at once.
type binder struct{ b *bench }

func (binder) Name() string { return defaultbinder.Name }

func (binder) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

func (b binder) Bind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	if b.b.write != nil {
		if tell, err := b.b.write(pod); err != nil || !tell {
			return fwk.AsStatus(err)
		}
	}
	b.b.mu.Lock()
	b.b.took = append(b.b.took, time.Since(b.b.made[pod.UID]))
	b.b.mu.Unlock()
	was := *pod
	was.Spec.NodeName = ""
	b.b.s.podChanged(ctx, &was, pod)
	b.b.all.Done()
	return nil
}

func newBench(tb testing.TB, nodes int) *bench { return newBenchWith(tb, nodes, nil) }

// newBenchWith has requests to the API go a way of the test's own.
func newBenchWith(tb testing.TB, nodes int, way http.RoundTripper) *bench {
	tb.Helper()
	return newBenchOf(tb, nodes, way, func(b *bench) fwk.Plugin { return binder{b} })
}

// newBenchOf binds by a plugin of the test's own.
func newBenchOf(tb testing.TB, nodes int, way http.RoundTripper, binds func(*bench) fwk.Plugin) *bench {
	tb.Helper()
	b := &bench{made: map[types.UID]time.Time{}}
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1", Transport: way})
	factories := registry.Factories()
	factories[defaultbinder.Name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return binds(b), nil }
	broadcaster := events.NewBroadcaster(nil)
	tb.Cleanup(broadcaster.Shutdown)
	defaults, err := config.Default(registry.Default())
	if err != nil {
		tb.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := New(tb.Context(), Options{
		Config: defaults, Registry: factories, Client: client, PodGroups: true,
		Informers: factory, Log: slog.New(slog.DiscardHandler),
		Recorder: func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(scheme.Scheme, name) },
	})
	if err != nil {
		tb.Fatal(err)
	}
	b.s, b.informers = s, factory
	b.groups, b.pods = factory.Scheduling().V1beta1().PodGroups().Informer().GetIndexer(), factory.Core().V1().Pods().Informer().GetIndexer()
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		s.cache.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
			}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
			}},
		})
	}
	return b
}

// pod is a new one.
func (b *bench) pod() *corev1.Pod {
	b.count++
	name := fmt.Sprintf("pod-%d", b.count)
	priority := int32(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Priority: &priority, SchedulerName: config.DefaultScheduler, Containers: []corev1.Container{{
			Name: "pause", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi"),
			}},
		}}},
	}
}

func (b *bench) add(ctx context.Context) {
	pod := b.pod()
	if b.change != nil {
		b.change(pod)
	}
	b.all.Add(1)
	b.mu.Lock()
	b.made[pod.UID] = time.Now()
	b.mu.Unlock()
	if err := b.pods.Add(pod); err != nil {
		panic(err) // it has a name
	}
	b.s.queue.Add(ctx, pod)
}

// run has the loop go on as long as f runs.
func (b *bench) run(tb testing.TB, f func(ctx context.Context)) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	var group sync.WaitGroup
	group.Go(func() { b.s.queue.Run(ctx) })
	group.Go(func() {
		for step(ctx, b.s) {
		}
	})
	f(ctx)
	stop()
	group.Wait()
	b.s.binding.Wait()
}

// measure is of one pod for each operation.
func (b *bench) measure(tb *testing.B) {
	tb.Helper()
	b.s.cache.Update(b.s.snapshot)
	b.run(tb, func(ctx context.Context) {
		tb.ReportAllocs()
		tb.ResetTimer()
		for range tb.N {
			b.add(ctx)
		}
		b.all.Wait()
		tb.StopTimer()
	})
	tb.ReportMetric(float64(tb.N)/tb.Elapsed().Seconds(), "pods/s")
}

// BenchmarkBasic is the loop with 5,000 nodes and pods that ask for a processor and memory: one operation is one pod.
func BenchmarkBasic(b *testing.B) {
	w := newBench(b, 5000)
	w.measure(b)
}

// BenchmarkMatchingAntiAffinity is BenchmarkBasic with 1,000 nodes that have a pod which wants none of the new ones
// near it.
func BenchmarkMatchingAntiAffinity(b *testing.B) {
	w := newBench(b, 5000)
	for i := range 1000 {
		pod := w.pod()
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i)
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}}},
		}}
		w.s.cache.SetPod(pod)
	}
	w.measure(b)
}

// BenchmarkLatency is from creation to binding with 1,000 nodes, at 100 pods a second.
func BenchmarkLatency(b *testing.B) {
	w := newBench(b, 1000)
	w.s.cache.Update(w.s.snapshot)
	w.run(b, func(ctx context.Context) {
		b.ResetTimer()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range b.N {
			<-tick.C
			w.add(ctx)
		}
		w.all.Wait()
		b.StopTimer()
	})
	slices.Sort(w.took)
	b.ReportMetric(float64(w.took[len(w.took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(w.took[len(w.took)/2].Microseconds())/1000, "p50-ms")
}

// TestBench is the same with few pods, so that what the benchmarks measure is known to work.
func TestBench(t *testing.T) {
	w := newBench(t, 200)
	w.run(t, func(ctx context.Context) {
		for range 300 {
			w.add(ctx)
		}
		w.all.Wait()
	})
	w.s.cache.Update(w.s.snapshot)
	all, _ := w.s.snapshot.NodeInfos().List()
	pods, most := 0, 0
	for _, n := range all {
		pods += len(n.GetPods())
		most = max(most, len(n.GetPods()))
	}
	if pods != 300 || most > 3 {
		t.Errorf("%d pods are on nodes, at most %d on one", pods, most)
	}
}

// BenchmarkSpread is BenchmarkBasic with pods that are spread, as those of a Deployment are, over so few nodes that all
// are looked at. There is room for 4,000.
func BenchmarkSpread(b *testing.B) {
	w := newBench(b, 100)
	blue := map[string]string{"color": "blue"}
	w.change = func(p *corev1.Pod) {
		p.Labels = blue
		for _, topology := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: 3, TopologyKey: topology, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: blue},
			})
		}
	}
	w.measure(b)
}
