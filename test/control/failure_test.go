package control

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// outage is a cluster of three nodes, with all kinds of what runs on them.
type outage struct {
	*plane
	nodes *hollow
	seen  *chronicle
}

// patience of the pods of an outage on a node that is lost, in seconds. Those of others are admitted with 300.
const webStays, setStays = 5, 0

// spread has the pods of an app be on as many nodes as there are for them.
func spread(app string) []corev1.TopologySpreadConstraint {
	honor := corev1.NodeInclusionPolicyHonor
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &honor,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	p := startAt(t, t.TempDir(), "0", graceFlag)
	p.equipped(t, p.ns)
	o := &outage{plane: p, nodes: p.hollowEvery(t, often, false, "a", "b", "c"), seen: p.watch(t)}
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	apps := p.client.AppsV1()
	for app, replicas := range map[string]int32{"web": 6, "patient": 3} {
		of := p.template(app, "i")
		of.Spec.TopologySpreadConstraints = spread(app)
		if app == "web" {
			tolerates(&of.Spec, webStays)
		}
		_, err := apps.Deployments(p.ns).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(app), Template: of},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	three, of := int32(3), p.template("set", "i")
	of.Spec.TopologySpreadConstraints = spread("set")
	tolerates(&of.Spec, setStays)
	if _, err := apps.StatefulSets(p.ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: appsv1.StatefulSetSpec{Replicas: &three, ServiceName: "set", Selector: selector("set"), Template: of},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := apps.DaemonSets(p.ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "each"}, Spec: appsv1.DaemonSetSpec{Selector: selector("each"), Template: p.template("each", "i")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.complete(t)
	return o
}

// complete waits until all runs that is to run.
func (o *outage) complete(t *testing.T) {
	t.Helper()
	o.deployed(t, "web")
	o.deployed(t, "patient")
	o.stateful(t, "set", 3, 3)
	o.daemons(t, "each", 3)
}

// on are the pods of an app on a node, those that are to end, too.
func (o *outage) on(t *testing.T, node, app string) []corev1.Pod {
	t.Helper()
	all, err := o.client.CoreV1().Pods(o.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	return all.Items
}

// TestPowerCut cuts the power of one of three nodes. What is on it is replaced elsewhere when it is not tolerated any
// longer, and not before; what may be there only once, and what belongs to the node, is not. A node that comes back
// ends what is not its any more, and has what is.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	before := map[types.UID]bool{}
	web, set := o.on(t, "c", "web"), o.on(t, "c", "set")
	if len(web) != 2 || len(set) != 1 {
		t.Fatalf("the node has %d and %d pods", len(web), len(set))
	}
	for _, app := range []string{"patient", "each"} {
		for _, p := range o.on(t, "c", app) {
			before[p.UID] = true
		}
	}
	o.nodes.cut("c")
	o.fallen(t, "c")
	since := o.given(t, "c")
	stays := map[string]time.Duration{web[0].Name: webStays, web[1].Name: webStays, set[0].Name: setStays}
	// A deployment says that it is complete until the first of its pods is known not to be ready.
	until(t, "what is not tolerated any longer ends", func() error {
		ended, _ := o.seen.read(t)
		for name := range stays {
			if ended[name] == nil {
				return fmt.Errorf("pod %s does not", name)
			}
		}
		return nil
	})
	until(t, "the other nodes have all pods", func() error {
		if on := len(o.on(t, "a", "web")) + len(o.on(t, "b", "web")); on != 6 {
			return fmt.Errorf("they have %d", on)
		}
		return nil
	})
	o.deployed(t, "web")

	ended, given := o.seen.read(t)
	if !slices.Equal(slices.Collect(maps.Keys(given)), []string{"c"}) {
		t.Errorf("nodes are given up: %v", given)
	}
	for name, seconds := range stays {
		due := since.Add(seconds * time.Second)
		at, why := disrupted(ended[name])
		if why != "DeletionByTaintManager" || at.Before(due) || askedAt(ended[name]).Before(due) {
			t.Errorf("pod %s, which is due at %s, ends at %s and says %q at %s", name, due, askedAt(ended[name]), why, at)
		}
	}
	if len(ended) != len(stays) {
		t.Errorf("there end %v, and not only %v", slices.Collect(maps.Keys(ended)), stays)
	}
	for _, p := range o.on(t, "c", "patient") {
		if !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.TolerationSeconds != nil && *t.TolerationSeconds == 300
		}) {
			t.Errorf("a pod tolerates %v", p.Spec.Tolerations)
		}
	}
	// Nobody knows whether the first of the name still runs.
	if now, err := o.client.CoreV1().Pods(o.ns).Get(t.Context(), set[0].Name, metav1.GetOptions{}); err != nil || now.UID != set[0].UID || now.DeletionTimestamp == nil {
		t.Errorf("the pod of the set is %v, %v", now, err)
	}

	o.nodes.restore(t, "c")
	o.back(t, "c")
	until(t, "the node has ended what is not its any more", func() error {
		for _, p := range slices.Concat(o.on(t, "c", "web"), o.on(t, "c", "set")) {
			if p.UID == web[0].UID || p.UID == web[1].UID || p.UID == set[0].UID {
				return fmt.Errorf("pod %s is still there", p.Name)
			}
		}
		return nil
	})
	o.complete(t)
	for _, p := range slices.Concat(o.on(t, "c", "patient"), o.on(t, "c", "each")) {
		delete(before, p.UID)
	}
	if len(before) > 0 {
		t.Errorf("pods that the node had a right to are gone: %v", before)
	}
}

// fallen waits until a node is lost, and requires that it is not before it was silent for long enough, and that what
// runs on it is said not to be ready.
func (o *outage) fallen(t *testing.T, name string) {
	t.Helper()
	node := o.lost(t, name)
	lease, err := o.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	due := lease.Spec.RenewTime.Add(grace).Truncate(time.Second)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && (c.Status != corev1.ConditionUnknown || c.LastTransitionTime.Time.Before(due)) {
			t.Errorf("the node, whose time ends at %s, is %v", due, c)
		}
	}
	until(t, "pods of the node are not ready", func() error {
		for _, app := range []string{"patient", "each"} {
			for _, p := range o.on(t, name, app) {
				if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
					return c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse
				}) {
					return fmt.Errorf("pod %s is", p.Name)
				}
			}
		}
		return nil
	})
}

// TestOutOfService has somebody say that nothing runs any more on a node whose power is cut. What is to end there is
// gone, and what may be there only once is elsewhere, while the node has never come back.
func TestOutOfService(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	set := o.on(t, "c", "set")
	o.nodes.cut("c")
	o.given(t, "c")
	until(t, "the pod of the set is to end", func() error {
		ended, _ := o.seen.read(t)
		if ended[set[0].Name] == nil {
			return fmt.Errorf("there end %d others", len(ended))
		}
		return nil
	})
	node, err := o.client.CoreV1().Nodes().Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
	if _, err := o.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.deployed(t, "web")
	o.deployed(t, "patient")
	o.stateful(t, "set", 3, 3)
	until(t, "the node has no pods", func() error {
		for _, app := range []string{"web", "patient", "set", "each"} {
			if on := o.on(t, "c", app); len(on) > 0 {
				return fmt.Errorf("it has %s", on[0].Name)
			}
		}
		return nil
	})
}

// TestCutOff cuts off most of the nodes of a zone, most of a large one, and then all nodes. None of the first zone is
// given up, those of the large one are slowly, and none is while no node is there. All come back.
func TestCutOff(t *testing.T) {
	t.Parallel()
	const slow = 5 * time.Second
	p := startAt(t, t.TempDir(), "0", graceFlag, "--node-eviction-rate=10", "--secondary-node-eviction-rate=0.2", "--large-cluster-size-threshold=7")
	p.equipped(t, p.ns)
	zones := map[string]int{"small": 6, "large": 8, "other": 1}
	var names []string
	for zone, n := range zones {
		for i := range n {
			names = append(names, fmt.Sprint(zone, i))
		}
	}
	h := p.hollowEvery(t, often, false, names...)
	seen := p.watch(t)
	uids := map[string]types.UID{}
	for _, name := range names {
		p.label(t, name, corev1.LabelTopologyZone, name[:5])
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + name}, Spec: p.template("on", "i").Spec}
		pod.Spec.NodeName = name
		tolerates(&pod.Spec, 0) // it goes as soon as its node is given up
		made, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[pod.Name] = made.UID
	}
	of := func(zone string, first, n int) (some []string) {
		for i := range n {
			some = append(some, fmt.Sprint(zone, first+i))
		}
		return some
	}
	cut := func(some []string) {
		t.Helper()
		h.cut(some...)
		for _, name := range some {
			p.lost(t, name)
		}
	}
	cut(of("small", 0, 4))
	if ended, given := seen.read(t); len(ended)+len(given) > 0 {
		t.Errorf("there end %d pods; nodes are given up: %v", len(ended), given)
	}

	cut(of("large", 0, 6))
	until(t, "nodes of the large zone are given up", func() error {
		if _, given := seen.read(t); len(given) < 3 {
			return fmt.Errorf("there are %v", given)
		}
		return nil
	})
	cut(slices.Concat(of("small", 4, 2), of("large", 6, 2), of("other", 0, 1)))
	for _, name := range names {
		until(t, "node "+name+" is not given up while none is there", func() error {
			node, err := p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && taint(node, corev1.TaintEffectNoExecute) != nil {
				err = fmt.Errorf("it has %v", node.Spec.Taints)
			}
			return err
		})
	}
	h.restore(t, names...)
	for _, name := range names {
		p.back(t, name)
	}
	ended, given := seen.read(t)
	var times []time.Time
	for name, at := range given {
		if name[:5] != "large" {
			t.Errorf("node %s is given up", name)
		}
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := range times[1:] {
		if apart := times[i+1].Sub(times[i]); apart < slow {
			t.Errorf("two nodes of a zone that is cut off are given up within %s", apart)
		}
	}
	for name, uid := range uids {
		if _, gone := given[name[len("on-"):]]; gone {
			continue
		}
		now, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || now.UID != uid || ended[name] != nil {
			t.Errorf("pod %s of a node that was not given up: %v", name, err)
		}
	}
}
