package daemonset

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// daemon is a pod of a set, of the revision of now or of before, bound, available or not.
func daemon(name, hash string, available bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}},
		Spec:       corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if available {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func ending(p *corev1.Pod) *corev1.Pod { p.DeletionTimestamp = &metav1.Time{}; return p }

func failed(p *corev1.Pod) *corev1.Pod { p.Status.Phase = corev1.PodFailed; return p }

// at is a node that is to have a pod, with those that it has.
func at(node string, pods ...*corev1.Pod) place {
	return place{node: node, run: true, stay: true, pods: pods}
}

func text(s step) string {
	out := ""
	for _, n := range s.create {
		out += "+" + n
	}
	for _, p := range s.remove {
		out += "-" + p.Name
	}
	for _, p := range s.failed {
		out += "!" + p.Name
	}
	return out
}

func TestManage(t *testing.T) {
	for name, c := range map[string]struct {
		surge bool
		place place
		want  string
	}{
		"none yet":                {false, at("n"), "+n"},
		"one":                     {false, at("n", daemon("a", "new", false)), ""},
		"two":                     {false, at("n", daemon("a", "new", true), daemon("b", "new", true)), "-b"},
		"failed":                  {false, at("n", failed(daemon("a", "new", true))), "!a"},
		"about to go":             {false, at("n", ending(daemon("a", "new", true))), ""},
		"may stay":                {false, place{node: "n", stay: true, pods: []*corev1.Pod{daemon("a", "new", true)}}, ""},
		"may not stay":            {false, place{node: "n", pods: []*corev1.Pod{daemon("a", "new", true), ending(daemon("b", "new", true))}}, "-a"},
		"not for this one":        {false, place{node: "n"}, ""},
		"both, for a while":       {true, at("n", daemon("a", "old", true), daemon("b", "new", false)), ""},
		"both, and it is time":    {true, at("n", daemon("a", "old", true), daemon("b", "new", true)), "-a"},
		"more of each":            {true, at("n", daemon("a", "old", true), daemon("b", "new", false), daemon("c", "new", false)), "-c"},
		"the old one goes":        {true, at("n", ending(daemon("a", "old", true))), "+n"},
		"the new one goes":        {true, at("n", ending(daemon("a", "new", true))), ""},
		"the old one may not run": {true, place{node: "n", stay: true, pods: []*corev1.Pod{ending(daemon("a", "old", true))}}, ""},
	} {
		v := view{hash: "new", now: time.Unix(1000, 0), places: []place{c.place}}
		if got := text(v.manage(c.surge)); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func TestUpdates(t *testing.T) {
	old := func(n int, available bool) place {
		return at(fmt.Sprint("n", n), daemon(fmt.Sprint("a", n), "old", available))
	}
	fresh := func(n int, available bool) place {
		return at(fmt.Sprint("n", n), daemon(fmt.Sprint("b", n), "new", available))
	}
	for name, c := range map[string]struct {
		surge  bool
		most   int
		places []place
		want   string
	}{
		"one by one":            {false, 1, []place{old(1, true), old(2, true)}, "-a1"},
		"one is missing":        {false, 1, []place{fresh(1, false), old(2, true)}, ""},
		"nobody misses it":      {false, 1, []place{fresh(1, false), old(2, false)}, "-a2"},
		"two at a time":         {false, 2, []place{old(1, true), old(2, true), old(3, true)}, "-a1-a2"},
		"one is made":           {false, 1, []place{at("n1"), old(2, true)}, ""},
		"beside each other":     {true, 1, []place{old(1, true), old(2, true)}, "+n1"},
		"not available":         {true, 1, []place{old(1, true), old(2, false)}, "+n2+n1"},
		"one is on its way":     {true, 1, []place{at("n1", daemon("a", "old", true), daemon("b", "new", false)), old(2, true)}, ""},
		"one has come":          {true, 1, []place{at("n1", daemon("a", "old", true), daemon("b", "new", true)), old(2, true)}, "+n2-a"},
		"nothing is of before":  {true, 1, []place{fresh(1, true), fresh(2, false)}, ""},
		"not where it need not": {false, 1, []place{{node: "n", stay: true, pods: []*corev1.Pod{daemon("a", "old", true)}}}, ""},
	} {
		v := view{hash: "new", now: time.Unix(1000, 0), places: c.places}
		f := v.replace
		if c.surge {
			f = v.surge
		}
		if got := text(f(c.most)); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// TestEligible has nodes be for a set by its selector, affinity and taints, and keep what they have while a taint only
// keeps others away.
func TestEligible(t *testing.T) {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	d.Spec.Template.Spec.NodeSelector = map[string]string{"color": "red"}
	node := func(color string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"color": color}}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	for name, c := range map[string]struct {
		node      *corev1.Node
		run, stay bool
	}{
		"red":              {node("red"), true, true},
		"blue":             {node("blue"), false, false},
		"tainted":          {node("red", taint("a", corev1.TaintEffectNoSchedule)), false, true},
		"evicting":         {node("red", taint("a", corev1.TaintEffectNoExecute)), false, false},
		"better not":       {node("red", taint("a", corev1.TaintEffectPreferNoSchedule)), true, true},
		"not ready":        {node("red", taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)), true, true},
		"cordoned":         {node("red", taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), true, true},
		"without network":  {node("red", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), false, true},
		"short of memory":  {node("red", taint(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)), true, true},
		"not initialized":  {node("red", taint("node.cloudprovider.kubernetes.io/uninitialized", corev1.TaintEffectNoSchedule)), false, true},
		"one is tolerated": {node("red", taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), taint("a", corev1.TaintEffectNoExecute)), false, false},
	} {
		if run, stay := eligible(bound(d), c.node); run != c.run || stay != c.stay {
			t.Errorf("%s: %v, %v", name, run, stay)
		}
	}
	p := bound(d)
	pin(&p.Spec, "m")
	if nodeOf(p) != "m" {
		t.Errorf("it is pinned to %q", nodeOf(p))
	}
	if run, _ := eligible(p, node("red")); run {
		t.Error("a pod may be on a node that it is not pinned to")
	}
	if d.Spec.Template.Spec.Affinity != nil || len(d.Spec.Template.Spec.Tolerations) > 0 {
		t.Error("the template has changed")
	}
	d.Spec.Template.Spec.HostNetwork = true
	if run, _ := eligible(bound(d), node("red", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))); !run {
		t.Error("what makes the network waits for it")
	}
}
