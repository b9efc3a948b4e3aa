package plugin_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cluster/clustertest"
	"github.com/berth-node/berth/control/scheduler/csi"
	"github.com/berth-node/berth/control/scheduler/cycle"
)

type factory func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error)

// world is what a plugin sees of the scheduler: the rest of the handle is not there.
type world struct {
	fwk.Handle
	nodes    []*corev1.Node
	pods     []*corev1.Pod
	snapshot *cluster.Snapshot
	objects  informers.SharedInformerFactory
	client   kubernetes.Interface
	devices  fwk.SharedDRAManager
}

func (w *world) SnapshotSharedLister() fwk.SharedLister                 { return w.snapshot }
func (w *world) SharedInformerFactory() informers.SharedInformerFactory { return w.objects }
func (w *world) Parallelizer() fwk.Parallelizer                         { return parallel{} }
func (w *world) SharedDRAManager() fwk.SharedDRAManager                 { return w.devices }
func (w *world) ClientSet() kubernetes.Interface                        { return w.client }
func (w *world) SharedCSIManager() fwk.CSIManager                       { return csi.New(w.objects) }

type parallel struct{}

func (parallel) Until(ctx context.Context, pieces int, work workqueue.DoWorkPieceFunc, _ string) {
	workqueue.ParallelizeUntil(ctx, 4, pieces, work)
}

func newWorld(nodes []*corev1.Node, pods []*corev1.Pod, namespaces ...*corev1.Namespace) *world {
	w := &world{objects: informers.NewSharedInformerFactory(nil, 0)}
	for _, n := range namespaces {
		_ = w.objects.Core().V1().Namespaces().Informer().GetIndexer().Add(n)
	}
	return w.with(nodes, pods)
}

// with is the world with other nodes and pods.
func (w *world) with(nodes []*corev1.Node, pods []*corev1.Pod) *world {
	return &world{
		nodes: nodes, pods: pods, snapshot: clustertest.Snapshot(pods, nodes), objects: w.objects, client: w.client, devices: w.devices,
	}
}

func (w *world) infos(t testing.TB) []fwk.NodeInfo {
	t.Helper()
	all, err := w.snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

func podOf(t testing.TB, text string) *corev1.Pod {
	p := parse[corev1.Pod](t, text)
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.Name == "" {
		p.Name = "new"
	}
	p.UID = uidOf(p)
	return p
}

func nodeOf(t testing.TB, text string) *corev1.Node { return parse[corev1.Node](t, text) }

func podsOf(t testing.TB, texts []string) []*corev1.Pod {
	all := make([]*corev1.Pod, len(texts))
	for i, text := range texts {
		all[i] = podOf(t, text)
		if all[i].Name == "new" {
			all[i].Name = fmt.Sprintf("p%d", i)
			all[i].UID = uidOf(all[i])
		}
	}
	return all
}

func nodesOf(t testing.TB, texts []string) []*corev1.Node {
	all := make([]*corev1.Node, len(texts))
	for i, text := range texts {
		all[i] = nodeOf(t, text)
	}
	return all
}

// verdicts are what a plugin says of each node: nothing if it takes it.
func verdicts(t testing.TB, p fwk.Plugin, w *world, pod *corev1.Pod) map[string]string {
	t.Helper()
	state := cycle.NewState()
	out := map[string]string{}
	only := map[string]bool(nil)
	if pre, ok := p.(fwk.PreFilterPlugin); ok {
		result, status := pre.PreFilter(t.Context(), state, pod, w.infos(t))
		if status.IsSkip() {
			return out
		}
		if !status.IsSuccess() {
			for _, n := range w.nodes {
				out[n.Name] = verdict(status)
			}
			return out
		}
		if !result.AllNodes() {
			only = map[string]bool{}
			for name := range result.NodeNames {
				only[name] = true
			}
		}
	}
	for _, info := range w.infos(t) {
		name := info.Node().Name
		if only != nil && !only[name] {
			out[name] = "left out"
		} else if s := p.(fwk.FilterPlugin).Filter(t.Context(), state, pod, info); !s.IsSuccess() {
			out[name] = verdict(s)
		}
	}
	return out
}

// verdict marks what preemption cannot help with an exclamation mark.
func verdict(s *fwk.Status) string {
	switch s.Code() {
	case fwk.Unschedulable:
		return s.Message()
	case fwk.UnschedulableAndUnresolvable:
		return s.Message() + "!"
	}
	return s.Code().String() + ": " + s.Message()
}

// scores are a plugin's of each node, normalized; nil if it skips.
func scores(t testing.TB, p fwk.Plugin, w *world, pod *corev1.Pod) map[string]int64 {
	t.Helper()
	state := cycle.NewState()
	if pre, ok := p.(fwk.PreScorePlugin); ok {
		if s := pre.PreScore(t.Context(), state, pod, w.infos(t)); s.IsSkip() {
			return nil
		} else if !s.IsSuccess() {
			t.Fatal(s.AsError())
		}
	}
	var list fwk.NodeScoreList
	for _, info := range w.infos(t) {
		n, s := p.(fwk.ScorePlugin).Score(t.Context(), state, pod, info)
		if !s.IsSuccess() {
			t.Fatal(s.AsError())
		}
		list = append(list, fwk.NodeScore{Name: info.Node().Name, Score: n})
	}
	if e := p.(fwk.ScorePlugin).ScoreExtensions(); e != nil {
		if s := e.NormalizeScore(t.Context(), state, pod, list); !s.IsSuccess() {
			t.Fatal(s.AsError())
		}
	}
	out := map[string]int64{}
	for _, s := range list {
		if s.Score < fwk.MinScore || s.Score > fwk.MaxScore {
			t.Errorf("%s scores %s %d", p.Name(), s.Name, s.Score)
		}
		out[s.Name] = s.Score
	}
	return out
}

func show[V any](m map[string]V) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s: %v; ", k, m[k])
	}
	return b.String()
}

func make1(t testing.TB, f factory, args runtime.Object, w *world) fwk.Plugin {
	t.Helper()
	p, err := f(t.Context(), args, w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func uidOf(p *corev1.Pod) types.UID { return types.UID(p.Namespace + "/" + p.Name) }

type (
	service    = corev1.Service
	replicaSet = appsv1.ReplicaSet

	deviceClass  = resourcev1.DeviceClass
	affinityArgs = configv1.NodeAffinityArgs
	interPodArgs = configv1.InterPodAffinityArgs
	fitArgs      = configv1.NodeResourcesFitArgs
	balanceArgs  = configv1.NodeResourcesBalancedAllocationArgs
	spreadArgs   = configv1.PodTopologySpreadArgs
)

func nsOf(t testing.TB, text string) *corev1.Namespace { return parse[corev1.Namespace](t, text) }
