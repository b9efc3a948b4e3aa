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
	m.Victims(3)
	m.Point("Filter", "Unschedulable", "default-scheduler", time.Millisecond)
	m.Incoming("active", "NodeAdd")
	m.Batch("default-scheduler", true)
	const want = `
# HELP scheduler_batch_attempts_total [ALPHA] Pods whose node was chosen of those that were found for another one, and pods for which all was looked at.
# TYPE scheduler_batch_attempts_total counter
scheduler_batch_attempts_total{profile="default-scheduler",result="hint_used"} 1
# HELP scheduler_framework_extension_point_duration_seconds [STABLE] How long all plugins of a phase take for a pod.
# TYPE scheduler_framework_extension_point_duration_seconds histogram
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0001"} 0
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0002"} 0
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0004"} 0
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0008"} 0
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0016"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0032"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0064"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0128"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0256"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.0512"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.1024"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="0.2048"} 1
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",profile="default-scheduler",status="Unschedulable",le="+Inf"} 1
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="default-scheduler",status="Unschedulable"} 0.001
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="default-scheduler",status="Unschedulable"} 1
# HELP scheduler_pending_pods [STABLE] Pods that wait for a node, by where in the queue they are.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 1
scheduler_pending_pods{queue="backoff"} 2
scheduler_pending_pods{queue="gated"} 4
scheduler_pending_pods{queue="unschedulable"} 3
# HELP scheduler_preemption_attempts_total [STABLE] How often room was to be made by ending pods.
# TYPE scheduler_preemption_attempts_total counter
scheduler_preemption_attempts_total 1
# HELP scheduler_preemption_victims [STABLE] How many pods are ended to make room once.
# TYPE scheduler_preemption_victims histogram
scheduler_preemption_victims_bucket{le="1"} 0
scheduler_preemption_victims_bucket{le="2"} 0
scheduler_preemption_victims_bucket{le="4"} 1
scheduler_preemption_victims_bucket{le="8"} 1
scheduler_preemption_victims_bucket{le="16"} 1
scheduler_preemption_victims_bucket{le="32"} 1
scheduler_preemption_victims_bucket{le="64"} 1
scheduler_preemption_victims_bucket{le="+Inf"} 1
scheduler_preemption_victims_sum 3
scheduler_preemption_victims_count 1
# HELP scheduler_queue_incoming_pods_total [STABLE] Pods that have come to a part of the queue, by what has brought them there.
# TYPE scheduler_queue_incoming_pods_total counter
scheduler_queue_incoming_pods_total{event="NodeAdd",queue="active"} 1
# HELP scheduler_schedule_attempts_total [STABLE] Attempts to schedule pods, by what has come of them.
# TYPE scheduler_schedule_attempts_total counter
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1
`
	err := testutil.GatherAndCompare(r, strings.NewReader(want),
		"scheduler_pending_pods", "scheduler_preemption_attempts_total", "scheduler_schedule_attempts_total", "scheduler_preemption_victims",
		"scheduler_framework_extension_point_duration_seconds", "scheduler_queue_incoming_pods_total", "scheduler_batch_attempts_total")
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
