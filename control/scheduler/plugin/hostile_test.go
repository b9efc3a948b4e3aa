package plugin_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
	"github.com/berth-node/berth/control/scheduler/plugin/volumebinding"
)

// TestManyResources has a pod ask for more resources than anybody has: what is said of each node is bounded, and none
// is said to have enough in the end.
func TestManyResources(t *testing.T) {
	w := newWorld(nodesOf(t, []string{`{metadata: {name: a}, status: {allocatable: {cpu: "1", pods: "10"}}}`}), nil)
	p := make1(t, noderesourcesfit.New, nil, w)
	pod := podOf(t, `{spec: {containers: [{name: c}]}}`)
	requests := corev1.ResourceList{}
	for i := range 20_000 {
		requests[corev1.ResourceName(fmt.Sprintf("example.com/r%d", i))] = resource.MustParse("1")
	}
	pod.Spec.Containers[0].Resources.Requests = requests
	state := cycle.NewState()
	if _, s := p.(fwk.PreFilterPlugin).PreFilter(t.Context(), state, pod, w.infos(t)); !s.IsSuccess() {
		t.Fatal(s)
	}
	s := p.(fwk.FilterPlugin).Filter(t.Context(), state, pod, w.infos(t)[0])
	if n := len(s.Reasons()); n == 0 || n > 100 || s.Code() != fwk.UnschedulableAndUnresolvable {
		t.Errorf("%d reasons, %s", n, s.Code())
	}
}

// TestManyVolumes has thousands of volumes that are none of a pod's be nothing to each node that it is asked about.
func TestManyVolumes(t *testing.T) {
	st := storage{
		claims:  []string{`{metadata: {name: c}, spec: {storageClassName: wait, resources: {requests: {storage: 1Gi}}}}`},
		classes: []string{`{metadata: {name: wait}, provisioner: d, volumeBindingMode: WaitForFirstConsumer}`},
	}
	for i := range 1000 {
		st.volumes = append(st.volumes, fmt.Sprintf(`{metadata: {name: v%d}, spec: {storageClassName: other%d}}`, i, i))
	}
	w := newWorld(nodesOf(t, []string{`{metadata: {name: a}}`}), nil)
	st.fill(t, w)
	p := make1(t, volumebinding.New, nil, w)
	pod := podOf(t, `{spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}`)
	state, node := cycle.NewState(), w.infos(t)[0]
	if _, s := p.(fwk.PreFilterPlugin).PreFilter(t.Context(), state, pod, w.infos(t)); !s.IsSuccess() {
		t.Fatal(s)
	}
	if n := testing.AllocsPerRun(10, func() {
		if s := p.(fwk.FilterPlugin).Filter(t.Context(), state, pod, node); !s.IsSuccess() {
			t.Fatal(s)
		}
	}); n > 100 {
		t.Errorf("a node costs %.0f allocations", n)
	}
}

// TestManyTerms has a pod with hundreds of terms wait, which is asked about each pod that comes or goes: nothing is
// read anew for it.
func TestManyTerms(t *testing.T) {
	w := newWorld(nil, nil, nsOf(t, `{metadata: {name: default, labels: {a: b}}}`))
	values := strings.Fields(strings.Repeat("value ", 1000))
	pod := podOf(t, `{spec: {affinity: {podAffinity: {}, podAntiAffinity: {}}}}`)
	for i := range 300 {
		s := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
		term := corev1.PodAffinityTerm{
			TopologyKey: fmt.Sprint("key-", i), LabelSelector: s,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		}
		pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			TopologyKey: term.TopologyKey, LabelSelector: s, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule,
		})
	}
	other := podOf(t, `{metadata: {name: other, labels: {app: another}}, spec: {nodeName: n}}`)
	other.Spec.Affinity = pod.Spec.Affinity
	for name, f := range map[string]factory{"affinity": interpodaffinity.New, "spread": podtopologyspread.New} {
		events, err := make1(t, f, nil, w).(fwk.EnqueueExtensions).EventsToRegister(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Event.Resource != fwk.AssignedPod {
				continue
			}
			if n := testing.AllocsPerRun(10, func() {
				for _, objects := range [][2]any{{nil, other}, {other, nil}} {
					if hint, err := e.QueueingHintFn(klog.Logger{}, pod, objects[0], objects[1]); err != nil || hint != fwk.QueueSkip {
						t.Fatalf("%s: %v %v", name, hint, err)
					}
				}
			}); n > 1000 {
				t.Errorf("%s: an event costs %.0f allocations", name, n)
			}
		}
	}
}
