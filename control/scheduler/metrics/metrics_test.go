package metrics

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

// TestMetrics has what is told be there by Kubernetes' names and labels.
func TestMetrics(t *testing.T) {
	r := metrics.NewKubeRegistry()
	m := New(r)
	m.Run(func() (int, int, int, int) { return 1, 2, 3, 4 })
	m.Attempt(Scheduled, "default-scheduler", time.Millisecond)
	m.Bound(1, time.Millisecond)
	m.Bound(20, time.Millisecond)
	m.Preemption()
	const want = `
# HELP scheduler_pending_pods [STABLE] Pods that wait for a node, by where in the queue they are.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 1
scheduler_pending_pods{queue="backoff"} 2
scheduler_pending_pods{queue="gated"} 4
scheduler_pending_pods{queue="unschedulable"} 3
# HELP scheduler_preemption_attempts_total [STABLE] How often room was to be made by ending pods.
# TYPE scheduler_preemption_attempts_total counter
scheduler_preemption_attempts_total 1
# HELP scheduler_schedule_attempts_total [STABLE] Attempts to schedule pods, by what has come of them.
# TYPE scheduler_schedule_attempts_total counter
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1
`
	err := testutil.GatherAndCompare(r, strings.NewReader(want),
		"scheduler_pending_pods", "scheduler_preemption_attempts_total", "scheduler_schedule_attempts_total")
	if err != nil {
		t.Error(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]bool{}
	for _, f := range families {
		if f.GetName() == "scheduler_pod_scheduling_sli_duration_seconds" {
			for _, one := range f.GetMetric() {
				labels[one.GetLabel()[0].GetValue()] = true
			}
		}
	}
	if !labels["1"] || !labels["15+"] || len(labels) != 2 {
		t.Errorf("attempts are %v", labels)
	}
	m.Stop()
	var none *Metrics
	none.Attempt(Error, "", 0)
}
