package daemonset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-node/berth/control/controller"
)

// TestOfNode has nodes come, change, live and go, and leads to the sets for which that makes a difference. That a node
// lives leads to none, and to no look at any.
func TestOfNode(t *testing.T) {
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	pods, sets, nodes := f.Core().V1().Pods().Informer(), f.Apps().V1().DaemonSets(), f.Core().V1().Nodes()
	if err := controller.Index(pods, byNode, onNode); err != nil {
		t.Fatal(err)
	}
	k := &keeper{sets: sets.Lister(), nodes: nodes.Lister(), index: pods.GetIndexer()}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"disk": "fast"}}}
		change(n)
		return n
	}
	is := node(func(*corev1.Node) {})
	if err := nodes.Informer().GetIndexer().Add(is); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "fast"}
		if err := sets.Informer().GetIndexer().Add(d); err != nil {
			t.Fatal(err)
		}
		if i == 7 {
			continue
		}
		p := bound(d)
		p.Name, p.Spec.NodeName = fmt.Sprint(i), "a"
		if err := pods.GetIndexer().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	lives := node(func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} })
	slow := node(func(n *corev1.Node) { n.Labels = nil })
	tainted := node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}} })
	for _, c := range []struct {
		what          string
		before, after any
		want          int
	}{
		{"comes", nil, is, 1},
		{"lives", is, lives, 0},
		{"is another one", is, slow, 1000},
		{"is tainted", is, tainted, 1000},
		{"is as it was, with its pods", slow, is, 1000},
	} {
		if keys := k.ofNode(c.before, c.after); len(keys) != c.want {
			t.Errorf("a node that %s leads to %d sets, not %d", c.what, len(keys), c.want)
		}
	}
	if n := testing.AllocsPerRun(3, func() { k.ofNode(is, lives) }); n > 10 {
		t.Errorf("that a node lives costs %.0f allocations", n)
	}
	if err := nodes.Informer().GetIndexer().Delete(is); err != nil {
		t.Fatal(err)
	}
	if keys := k.ofNode(is, nil); len(keys) != 1000 {
		t.Errorf("a node that is gone leads to %d sets", len(keys))
	}
}
