package podautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// startup is how long the processors of a pod that has just begun tell of its start and not of its work.
	startup = 5 * time.Minute
	// readiness is how long a pod is not ready that never was.
	readiness = 30 * time.Second
)

// reading is what a pod has of a metric, in thousandths.
type reading struct {
	value  int64
	at     time.Time
	window time.Duration
}

// tolerance is by how much of the target a metric may be off.
type tolerance struct{ up, down float64 }

func (t tolerance) within(ratio float64) bool { return ratio >= 1-t.down && ratio <= 1+t.up }

// grouped are pods by what their readings are worth.
type grouped struct {
	ready            int
	unready, missing sets.Set[string]
}

// group takes the readings out that do not count.
func group(pods []*corev1.Pod, readings map[string]reading, resource corev1.ResourceName, now time.Time) grouped {
	g := grouped{unready: sets.New[string](), missing: sets.New[string]()}
	for _, p := range pods {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			delete(readings, p.Name)
			continue
		}
		if p.Status.Phase == corev1.PodPending {
			g.unready.Insert(p.Name)
			delete(readings, p.Name)
			continue
		}
		r, has := readings[p.Name]
		switch {
		case !has:
			g.missing.Insert(p.Name)
		case resource == corev1.ResourceCPU && starts(p, r, now):
			g.unready.Insert(p.Name)
			delete(readings, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

// starts says whether a reading of processors is of a pod's start.
func starts(p *corev1.Pod, r reading, now time.Time) bool {
	var ready *corev1.PodCondition
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			ready = &p.Status.Conditions[i]
		}
	}
	if ready == nil || p.Status.StartTime == nil {
		return true
	}
	if p.Status.StartTime.Add(startup).After(now) {
		return ready.Status == corev1.ConditionFalse || r.at.Before(ready.LastTransitionTime.Add(r.window))
	}
	return ready.Status == corev1.ConditionFalse && p.Status.StartTime.Add(readiness).After(ready.LastTransitionTime.Time)
}

// gauge measures readings against a target: how many times it they are.
type gauge struct {
	ratio func(readings map[string]reading) (float64, error)
	// full is what a pod counts for whose reading is missing, where fewer are asked for.
	full func(pod string) int64
}

// errTarget is of a target that the API refuses, and that was stored before it did, or is less than can be counted: any
// number of pods is nothing, or without end, of it.
var errTarget = errors.New("its target is not more than 0")

// averaged measures the mean of readings.
func averaged(target int64) gauge {
	return gauge{
		ratio: func(all map[string]reading) (float64, error) {
			if target <= 0 {
				return 0, errTarget
			}
			return float64(mean(all)) / float64(target), nil
		},
		full: func(string) int64 { return target },
	}
}

// utilized measures readings against what the pods request, in percent.
func utilized(target int32, requests map[string]int64) gauge {
	return gauge{
		ratio: func(all map[string]reading) (float64, error) {
			if target <= 0 {
				return 0, errTarget
			}
			percent, err := utilization(all, requests)
			return float64(percent) / float64(target), err
		},
		full: func(pod string) int64 {
			return int64(min(float64(requests[pod])*float64(max(100, target))/100, 1<<62))
		},
	}
}

func mean(all map[string]reading) int64 {
	if len(all) == 0 {
		return 0
	}
	sum := int64(0)
	for _, r := range all {
		sum = plus(sum, r.value)
	}
	return sum / int64(len(all))
}

// plus adds what may be as much as a number can say: a sum that turns negative would have the fewest pods where the
// most are asked for.
func plus(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

func utilization(all map[string]reading, requests map[string]int64) (int32, error) {
	used, asked := int64(0), int64(0)
	for pod, r := range all {
		if request, ok := requests[pod]; ok {
			used, asked = plus(used, r.value), plus(asked, request)
		}
	}
	if asked == 0 {
		return 0, errors.New("no metrics returned matched known pods")
	}
	return int32(min(max(float64(used)*100/float64(asked), 0), math.MaxInt32)), nil
}

// replicas are how many pods it takes to have the readings be on target. Those that are not known are taken for what
// changes the least: where more are asked for as idle, where fewer as on target. It never changes the direction.
func replicas(current int32, readings map[string]reading, g grouped, by gauge, t tolerance) (int32, error) {
	ratio, err := by.ratio(readings)
	if err != nil {
		return 0, err
	}
	more := ratio > 1 && g.unready.Len() > 0
	if !more && g.missing.Len() == 0 {
		if t.within(ratio) {
			return current, nil
		}
		return ceil(ratio * float64(g.ready)), nil
	}
	for pod := range g.missing {
		switch {
		case ratio < 1:
			readings[pod] = reading{value: by.full(pod)}
		case ratio > 1:
			readings[pod] = reading{}
		}
	}
	if more {
		for pod := range g.unready {
			readings[pod] = reading{}
		}
	}
	again, err := by.ratio(readings)
	if err != nil {
		return 0, err
	}
	if t.within(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current, nil
	}
	n := ceil(again * float64(len(readings)))
	if again < 1 && n > current || again > 1 && n < current {
		return current, nil
	}
	return n, nil
}

// ceil is the next whole number. What is no number is none: as an integer it would be any.
func ceil(v float64) int32 {
	if math.IsNaN(v) {
		return 0
	}
	return int32(math.Ceil(min(max(v, 0), math.MaxInt32)))
}

// requestsOf are what pods ask for of a resource, or one container of each does.
func requestsOf(pods []*corev1.Pod, container string, resource corev1.ResourceName) (map[string]int64, error) {
	all := map[string]int64{}
	for _, p := range pods {
		if container == "" && p.Spec.Resources != nil {
			if q, ok := p.Spec.Resources.Requests[resource]; ok {
				all[p.Name] = q.MilliValue()
				continue
			}
		}
		sum, found := int64(0), false
		for _, c := range running(p) {
			if container != "" && c.Name != container {
				continue
			}
			q, ok := c.Resources.Requests[resource]
			if !ok {
				return nil, fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, p.Name)
			}
			sum, found = plus(sum, q.MilliValue()), true
		}
		if container != "" && !found {
			return nil, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
		}
		all[p.Name] = sum
	}
	return all, nil
}

// running are the containers that run as long as their pod does.
func running(p *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return append(all, p.Spec.Containers...)
}

// readyPods are how many of the pods work.
func readyPods(pods []*corev1.Pod) int {
	n := 0
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.Status.Phase == corev1.PodRunning {
				n++
			}
		}
	}
	return n
}
