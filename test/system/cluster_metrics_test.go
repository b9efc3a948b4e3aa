package system

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// TestClusterMetrics has the control plane tell what a node and its pods use, with nothing installed: as much as there
// is, over a time that was measured.
func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	m.create(m.bound("idle"))
	m.create(m.bound("busy", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "busy"}
		p.Spec.Containers[0].Command = []string{"sh", "-c", "while :; do :; done"}
		p.Spec.TerminationGracePeriodSeconds = new(int64(0))
	}))
	m.apiReady("idle")
	m.apiReady("busy")
	get := func(path string, into any) error {
		b, err := m.plane.Client.CoreV1().RESTClient().Get().RequestURI("/apis/metrics.k8s.io/v1beta1" + path).DoRaw(t.Context())
		if err != nil {
			return err
		}
		return json.Unmarshal(b, into)
	}
	// On a busy machine there are windows in which the busy one hardly runs: the next one tells.
	var pods v1beta1.PodMetricsList
	m.eventually("the metrics of both pods", func() error {
		pods = v1beta1.PodMetricsList{}
		if err := get("/namespaces/default/pods", &pods); err != nil || len(pods.Items) < 2 {
			return fmt.Errorf("there are %v: %w", pods.Items, err)
		}
		for _, p := range pods.Items {
			if len(p.Containers) != 1 || p.Containers[0].Name != "main" {
				return fmt.Errorf("one is %v", p)
			}
		}
		if used := func(i int) int64 { return pods.Items[i].Containers[0].Usage.Cpu().MilliValue() }; pods.Items[0].Name != "busy" ||
			used(0) < 20 || used(0) > 1500 || used(1) > used(0)/2 {
			return fmt.Errorf("%s uses %dm, %s %dm", pods.Items[0].Name, used(0), pods.Items[1].Name, used(1))
		}
		return nil
	})
	busy, idle := pods.Items[0], pods.Items[1]
	if memory := idle.Containers[0].Usage.Memory().Value(); memory < 1<<10 || memory > 256<<20 {
		t.Errorf("one that is not has %d bytes", memory)
	}
	if w := busy.Window.Duration; w < time.Second || w > 5*time.Minute || time.Since(busy.Timestamp.Time) > time.Minute {
		t.Errorf("it was measured at %s over %s", busy.Timestamp, w)
	}
	var nodes v1beta1.NodeMetricsList
	if err := get("/nodes", &nodes); err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != m.name {
		t.Fatalf("nodes are %v: %v", nodes, err)
	}
	if u := nodes.Items[0].Usage; u.Cpu().MilliValue() < 20 || u.Memory().Value() < 1<<24 || nodes.Items[0].Labels[corev1.LabelHostname] == "" {
		t.Errorf("the node is %v", nodes.Items[0])
	}
	if err := get("/namespaces/default/pods?labelSelector=app%3Dbusy", &pods); err != nil || len(pods.Items) != 1 {
		t.Errorf("of a label there are %v: %v", pods.Items, err)
	}
	var one v1beta1.PodMetrics
	if err := get("/namespaces/default/pods/busy", &one); err != nil || one.Labels["app"] != "busy" {
		t.Errorf("by name there is %v: %v", one, err)
	}
	if err := get("/namespaces/default/pods/other", &one); !apierrors.IsNotFound(err) {
		t.Errorf("one that is not there: %v", err)
	}
}
