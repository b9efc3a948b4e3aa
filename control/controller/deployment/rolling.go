package deployment

import (
	"cmp"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// resize is another number of pods for a set.
type resize struct {
	set *appsv1.ReplicaSet
	to  int32
}

// bounds are how many pods more than it wants a deployment may have during a rollout, and how many may miss.
func bounds(d *appsv1.Deployment) (surge, unavailable int32) {
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || r == nil {
		return 0, 0
	}
	wanted := int(*d.Spec.Replicas)
	part := func(of *intstr.IntOrString, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(of, intstr.FromInt32(0)), wanted, up)
		if err != nil {
			return 0 // the rules of the API have it be a number
		}
		return int32(min(n, math.MaxInt32)) // any percentage may be asked for
	}
	surge, unavailable = part(r.MaxSurge, true), part(r.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1 // of percentages: a rollout that may do nothing would never end
	}
	return min(surge, math.MaxInt32-int32(wanted)), min(unavailable, int32(wanted))
}

// replicas is how many pods sets want together, as far as an int32 goes.
func replicas(sets ...*appsv1.ReplicaSet) int32 {
	var n int64
	for _, s := range sets {
		if s != nil {
			n += int64(*s.Spec.Replicas)
		}
	}
	return int32(min(n, math.MaxInt32))
}

// availableOf is how many of the pods that a set is to keep are available. What its status has of pods that are to go
// does not count.
func availableOf(s *appsv1.ReplicaSet) int32 {
	return min(s.Status.AvailableReplicas, *s.Spec.Replicas)
}

// grow is how many pods the new set has next. has is how many it has, all how many all sets have.
func grow(d *appsv1.Deployment, has, all int32) int32 {
	wanted := *d.Spec.Replicas
	if has >= wanted {
		return wanted
	}
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return wanted
	}
	surge, _ := bounds(d)
	return has + min(max(wanted+surge-all, 0), wanted-has)
}

// roll is the next step of a rollout: the new set grows into the room there is, the old ones give up what they may.
func roll(d *appsv1.Deployment, now *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) []resize {
	var steps []resize
	if to := grow(d, *now.Spec.Replicas, replicas(append(slices.Clone(old), now)...)); to != *now.Spec.Replicas {
		steps = append(steps, resize{now, to})
	}
	return append(steps, shrink(d, now, old)...)
}

// shrink is what old sets give up, the oldest first: pods that are not available first, since nobody misses them, and
// then as many as there are more than are to be available at any time.
func shrink(d *appsv1.Deployment, now *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) []resize {
	_, unavailable := bounds(d)
	least := *d.Spec.Replicas - unavailable
	// Of a new set that is to shrink itself only what stays counts.
	fresh := min(*now.Spec.Replicas, *d.Spec.Replicas)
	ready := min(availableOf(now), fresh)
	may := replicas(old...) + fresh - least - (fresh - ready)
	if may <= 0 {
		return nil
	}
	old = slices.Clone(old)
	slices.SortStableFunc(old, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	to := map[*appsv1.ReplicaSet]int32{}
	available := ready
	for _, s := range old {
		gone := min(*s.Spec.Replicas-availableOf(s), may)
		to[s], may = *s.Spec.Replicas-gone, may-gone
		available += availableOf(s)
	}
	may = min(may, available-least)
	for _, s := range old {
		if may <= 0 {
			break
		}
		gone := min(to[s], may)
		to[s], may = to[s]-gone, may-gone
	}
	var steps []resize
	for _, s := range old {
		if to[s] != *s.Spec.Replicas {
			steps = append(steps, resize{s, to[s]})
		}
	}
	return steps
}

// spread divides another number of pods among sets in the midst of a rollout, to each as it has pods already, so that
// the more of them run, the less is at risk.
func spread(d *appsv1.Deployment, now *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) []resize {
	all := active(append(slices.Clone(old), now))
	surge, _ := bounds(d)
	most := *d.Spec.Replicas + surge
	if *d.Spec.Replicas == 0 {
		most = 0
	}
	add := most - replicas(all...)
	// Larger ones first; of the same size the newer ones grow, and the older ones shrink.
	slices.SortStableFunc(all, func(a, b *appsv1.ReplicaSet) int {
		age := a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		if add > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(*b.Spec.Replicas, *a.Spec.Replicas), age, cmp.Compare(a.Name, b.Name))
	})
	to := make([]int32, len(all))
	var added int32
	for i, s := range all {
		part := share(d, s, most)
		if left := add - added; add > 0 {
			part = min(max(part, 0), left)
		} else {
			part = max(min(part, 0), left)
		}
		if add == 0 {
			part = 0
		}
		to[i], added = *s.Spec.Replicas+part, added+part
	}
	var steps []resize
	for i, s := range all {
		if i == 0 {
			to[i] = max(to[i]+add-added, 0) // what rounding has left
		}
		steps = append(steps, resize{s, to[i]})
	}
	return steps
}

// share is by how much a set changes with its deployment.
func share(d *appsv1.Deployment, s *appsv1.ReplicaSet, most int32) int32 {
	if *d.Spec.Replicas == 0 {
		return -*s.Spec.Replicas
	}
	before, has := number(s, maxKey)
	if !has || before == 0 {
		before = d.Status.Replicas
		if before == 0 {
			return 0
		}
	}
	to := (float64(*s.Spec.Replicas) * float64(most)) / float64(before)
	return int32(min(to+0.5, math.MaxInt32)) - *s.Spec.Replicas
}

// active are those of sets that are to have pods.
func active(all []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var out []*appsv1.ReplicaSet
	for _, s := range all {
		if s != nil && *s.Spec.Replicas > 0 {
			out = append(out, s)
		}
	}
	return out
}
