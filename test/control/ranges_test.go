package control

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeRanges gives nodes parts of the cluster's ranges, which are theirs after a kill, and nobody else's.
func TestNodeRanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func() *plane {
		return startAt(t, dir, "0", withoutNodes, "--cluster-cidr=10.96.0.0/14,fd00:1::/56", "--node-cidr-mask-size-ipv4=16")
	}
	p := run()
	has := map[string]string{}
	add := func(name string) {
		t.Helper()
		if _, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, name+" has its ranges", func() error {
			n, err := p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && len(n.Spec.PodCIDRs) != 2 {
				err = fmt.Errorf("it has %v", n.Spec.PodCIDRs)
			}
			if err == nil {
				has[name] = strings.Join(n.Spec.PodCIDRs, " ")
			}
			return err
		})
	}
	add("a")
	add("b")
	p.kill()
	p = run()
	add("c")
	if fmt.Sprint(has) != "map[a:10.97.0.0/16 fd00:1::/64 b:10.98.0.0/16 fd00:1:0:1::/64 c:10.99.0.0/16 fd00:1:0:2::/64]" {
		t.Errorf("they have %v", has) // the first range is that of services
	}
	if _, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "d"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "an event says that nothing is left", func() error {
		all, err := p.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=CIDRNotAvailable,involvedObject.name=d"})
		if err == nil && len(all.Items) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	p.stop(t)
}
