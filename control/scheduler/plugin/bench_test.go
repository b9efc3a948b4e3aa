package plugin_test

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/balancedallocation"
	"github.com/berth-node/berth/control/scheduler/plugin/imagelocality"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodedeclaredfeatures"
	"github.com/berth-node/berth/control/scheduler/plugin/nodename"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeports"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeunschedulable"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
	"github.com/berth-node/berth/control/scheduler/plugin/prioritysort"
	"github.com/berth-node/berth/control/scheduler/plugin/schedulinggates"
	"github.com/berth-node/berth/control/scheduler/plugin/tainttoleration"
	"github.com/berth-node/berth/control/scheduler/profile"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// noBinder ends every profile of these tests: what plugins decide is looked at, not written.
type noBinder struct{}

func (noBinder) Name() string { return "NoBinder" }

func (noBinder) Bind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status { return nil }

// scheduler is the plugins in the framework, with Kubernetes' weights, and a loop that takes a pod at a time.
type scheduler struct {
	profile  *profile.Profile
	cache    *cluster.Cache
	snapshot *cluster.Snapshot
	next     int
}

func newScheduler(t testing.TB) (*scheduler, informers.SharedInformerFactory) {
	t.Helper()
	registry := map[string]profile.Factory{
		schedulinggates.Name: schedulinggates.New, prioritysort.Name: prioritysort.New, nodeunschedulable.Name: nodeunschedulable.New,
		nodename.Name: nodename.New, tainttoleration.Name: tainttoleration.New, nodeaffinity.Name: nodeaffinity.New,
		nodeports.Name: nodeports.New, noderesourcesfit.Name: noderesourcesfit.New, podtopologyspread.Name: podtopologyspread.New,
		interpodaffinity.Name: interpodaffinity.New, nodedeclaredfeatures.Name: nodedeclaredfeatures.New,
		balancedallocation.Name: balancedallocation.New, imagelocality.Name: imagelocality.New,
		"NoBinder": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return noBinder{}, nil },
	}
	plugins := &configv1.Plugins{}
	for _, p := range []struct {
		name   string
		weight int32
	}{
		{schedulinggates.Name, 0},
		{prioritysort.Name, 0},
		{nodeunschedulable.Name, 0},
		{nodename.Name, 0},
		{tainttoleration.Name, 3},
		{nodeaffinity.Name, 2},
		{nodeports.Name, 0},
		{noderesourcesfit.Name, 1},
		{podtopologyspread.Name, 2},
		{interpodaffinity.Name, 2},
		{nodedeclaredfeatures.Name, 0},
		{balancedallocation.Name, 1},
		{imagelocality.Name, 1},
		{"NoBinder", 0},
	} {
		one := configv1.Plugin{Name: p.name}
		if p.weight > 0 {
			one.Weight = &p.weight
		}
		plugins.MultiPoint.Enabled = append(plugins.MultiPoint.Enabled, one)
	}
	objects := informers.NewSharedInformerFactory(nil, 0)
	s := &scheduler{cache: cluster.NewCache(), snapshot: cluster.NewEmptySnapshot()}
	var err error
	s.profile, err = profile.New(t.Context(), profile.Options{
		Name: corev1.DefaultSchedulerName, Plugins: plugins, Registry: registry, Log: slog.New(slog.DiscardHandler),
		Shared: &profile.Shared{Informers: objects, Snapshot: s.snapshot, Nominator: queue.NewNominator(), Parallelism: 16},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, objects
}

// place finds a node for a pod among a part of the nodes that suit, as Kubernetes does, and assumes it there.
func (s *scheduler) place(ctx context.Context, pod *corev1.Pod) (string, error) {
	s.cache.Update(s.snapshot)
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return "", err
	}
	state := cycle.NewState()
	only, _, status := s.profile.RunPreFilter(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return "", status.AsError()
	}
	enough := max(100, len(nodes)*max(5, 50-len(nodes)/125)/100)
	var suitable []fwk.NodeInfo
	var last *fwk.Status
	for i := range nodes {
		info := nodes[(s.next+i)%len(nodes)]
		if !only.AllNodes() && !only.NodeNames.Has(info.Node().Name) {
			continue
		}
		if last = s.profile.FilterNominated(ctx, state, pod, info); last.IsSuccess() {
			if suitable = append(suitable, info); len(suitable) == enough {
				s.next = (s.next + i + 1) % len(nodes)
				break
			}
		}
	}
	if len(suitable) == 0 {
		return "", fmt.Errorf("no node suits: %w", last.AsError())
	}
	if status := s.profile.RunPreScorePlugins(ctx, state, pod, suitable); !status.IsSuccess() {
		return "", status.AsError()
	}
	ranking, status := profile.Rank(ctx, s.profile, state, pod, suitable)
	if !status.IsSuccess() {
		return "", status.AsError()
	}
	totals := ranking.Totals()
	best := 0
	for i := range totals {
		if totals[i] > totals[best] {
			best = i
		}
	}
	info, err := cluster.NewPodInfo(pod)
	if err != nil {
		return "", err
	}
	pod.Spec.NodeName = suitable[best].Node().Name
	return pod.Spec.NodeName, s.cache.Assume(info)
}

const container = `containers: [{name: pause, image: pause:3, ports: [{containerPort: 80}],
	resources: {limits: {cpu: 100m, memory: 500Mi}, requests: {cpu: 100m, memory: 500Mi}}}]`

func near(kind, when, topology, color string) string {
	term := `{topologyKey: ` + topology + `, namespaces: [sched-1, sched-0], labelSelector: {matchLabels: {color: ` + color + `}}}`
	if when == "preferred" {
		term = `{weight: 1, podAffinityTerm: ` + term + `}`
	}
	return `{metadata: {labels: {color: ` + color + `}}, spec: {` + container + `, affinity: {` + kind + `: {` + when +
		`DuringSchedulingIgnoredDuringExecution: [` + term + `]}}}}`
}

func spreading(action string) string {
	return `{metadata: {labels: {color: blue}}, spec: {` + container + `, topologySpreadConstraints: [{maxSkew: 5,
		topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ` + action + `, labelSelector: {matchLabels: {color: blue}}}]}}`
}

// workload is one of Kubernetes' scheduler_perf, at 5,000 nodes.
type workload struct {
	zones    []string
	before   []string // templates of pods that are there
	each     int      // how many of each of them
	template string
	measured int
	pace     int // pods a second that Kubernetes wants of itself
}

func workloads() map[string]workload {
	const host, zone = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
	plain := `{spec: {` + container + `}}`
	required, preferred := "required", "preferred"
	anti := near("podAntiAffinity", required, host, "green")
	affine := near("podAffinity", required, zone, "blue")
	likes := near("podAffinity", preferred, host, "red")
	dislikes := near("podAntiAffinity", preferred, host, "yellow")
	nodes := `{spec: {` + container + `, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone1, zone2]}]}]}}}}}`
	one, three := []string{"zone1"}, []string{"moon-1", "moon-2", "moon-3"}
	return map[string]workload{
		"SchedulingBasic":                    {nil, []string{plain}, 1000, plain, 10000, 270},
		"SchedulingPodAntiAffinity":          {nil, []string{anti}, 1000, anti, 2000, 60},
		"SchedulingPodMatchingAntiAffinity":  {nil, []string{anti}, 1000, `{metadata: {labels: {color: green}}, spec: {` + container + `}}`, 5000, 600},
		"SchedulingPodAffinity":              {one, []string{affine}, 5000, affine, 5000, 35},
		"SchedulingPreferredPodAffinity":     {nil, []string{likes}, 5000, likes, 5000, 90},
		"SchedulingPreferredPodAntiAffinity": {nil, []string{dislikes}, 5000, dislikes, 5000, 90},
		"SchedulingNodeAffinity":             {one, []string{nodes}, 5000, nodes, 10000, 220},
		"MixedSchedulingBasePod":             {one, []string{plain, affine, anti, likes, dislikes}, 2000, plain, 5000, 140},
		"TopologySpreading":                  {three, []string{plain}, 5000, spreading("DoNotSchedule"), 5000, 85},
		"PreferredTopologySpreading":         {three, []string{plain}, 5000, spreading("ScheduleAnyway"), 5000, 125},
	}
}

// BenchmarkWorkloads places pods at 5,000 nodes, without the API: "pods/s" is to be twice the pace, "of-pace", or more.
func BenchmarkWorkloads(b *testing.B) {
	for name, w := range workloads() {
		b.Run(name, func(b *testing.B) { w.run(b, 5000) })
	}
}

func (w workload) run(b *testing.B, nodes int) {
	s, objects := newScheduler(b)
	for _, ns := range []string{"sched-0", "sched-1"} {
		if err := objects.Core().V1().Namespaces().Informer().GetIndexer().Add(nsOf(b, `{metadata: {name: `+ns+`}}`)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range nodes {
		n := nodeOf(b, `{status: {allocatable: {pods: 110, cpu: 4, memory: 32Gi}}}`)
		n.Name = fmt.Sprintf("node-%04d", i)
		n.Labels = map[string]string{corev1.LabelHostname: n.Name}
		if len(w.zones) > 0 {
			n.Labels[corev1.LabelTopologyZone] = w.zones[i%len(w.zones)]
		}
		s.cache.SetNode(n)
	}
	for k, text := range w.before {
		template := podOf(b, text)
		for i := range w.each {
			// On nodes that take all of them: those with anti-affinity one each.
			s.cache.SetPod(numbered(template, "sched-0", k*w.each+i, fmt.Sprintf("node-%04d", i%nodes)))
		}
	}
	template := podOf(b, w.template)
	var placed []*corev1.Pod
	b.ResetTimer()
	cpu := cpuTime(b)
	for i := range b.N {
		if len(placed) == w.measured {
			b.StopTimer()
			for _, p := range placed {
				s.cache.Forget(p.UID)
			}
			placed = placed[:0]
			b.StartTimer()
		}
		pod := numbered(template, "sched-1", i, "")
		if _, err := s.place(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
		placed = append(placed, pod)
	}
	rate := float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "pods/s")
	b.ReportMetric(rate/float64(w.pace), "of-pace")
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(b.N), "cpu-µs/pod")
}

// cpuTime is what the process has used of its processors, which says more than the clock on a machine that does other
// things too.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func numbered(template *corev1.Pod, ns string, i int, on string) *corev1.Pod {
	p := template.DeepCopy()
	p.Namespace, p.Name, p.Spec.NodeName = ns, fmt.Sprintf("pod-%d", i), on
	p.UID = uidOf(p)
	return p
}

// TestFramework places a few pods of every workload in the framework.
func TestFramework(t *testing.T) {
	for name, w := range workloads() {
		t.Run(name, func(t *testing.T) {
			s, _ := newScheduler(t)
			for i := range 6 {
				n := nodeOf(t, `{status: {allocatable: {pods: 110, cpu: 4, memory: 32Gi}}}`)
				n.Name = fmt.Sprintf("node-%d", i)
				n.Labels = map[string]string{corev1.LabelHostname: n.Name, corev1.LabelTopologyZone: fmt.Sprintf("zone%d", 1+i%2)}
				s.cache.SetNode(n)
			}
			on := map[string]int{}
			for i := range 6 {
				node, err := s.place(t.Context(), numbered(podOf(t, w.template), "sched-1", i, ""))
				if err != nil {
					t.Fatal(err)
				}
				on[node]++
			}
			want := map[string]int{
				"SchedulingPodAntiAffinity": 6, "SchedulingPreferredPodAntiAffinity": 6, "SchedulingPreferredPodAffinity": 1,
				"SchedulingPodAffinity": 3, "SchedulingBasic": 6,
			}[name]
			if want > 0 && len(on) != want {
				t.Errorf("on %v", on)
			}
		})
	}
}
