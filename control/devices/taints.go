// Package devices is what the devices of slices and the results of allocations say together with rules that taint them,
// for the scheduler and for controllers.
package devices

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
)

// Selects says whether a rule taints a device. One without a selector taints none.
func Selects(rule *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && is(s.Driver, driver) && is(s.Pool, pool) && is(s.Device, device)
}

func is(wanted *string, has string) bool { return wanted == nil || *wanted == has }

// Taint is the taint of a rule. Its time is when the rule came where it says nothing itself.
func Taint(rule *resourcev1.DeviceTaintRule) resourcev1.DeviceTaint {
	t := rule.Spec.Taint
	if t.TimeAdded == nil {
		t.TimeAdded = &rule.CreationTimestamp
	}
	return t
}

// Tainted are the slices with what rules add to the taints of their devices. Those that no rule is about are the ones
// that are given.
func Tainted(all []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) []*resourcev1.ResourceSlice {
	if len(rules) == 0 {
		return all
	}
	// The order of taints is to be the same each time.
	rules = slices.SortedFunc(slices.Values(rules), func(a, b *resourcev1.DeviceTaintRule) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	tainted := make([]*resourcev1.ResourceSlice, 0, len(all))
	for _, s := range all {
		tainted = append(tainted, taint(s, rules))
	}
	return tainted
}

func taint(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	var changed *resourcev1.ResourceSlice
	for i := range s.Spec.Devices {
		for _, r := range rules {
			if !Selects(r, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
				continue
			}
			if changed == nil {
				c := *s
				c.Spec.Devices = slices.Clone(s.Spec.Devices)
				changed = &c
			}
			d := &changed.Spec.Devices[i]
			d.Taints = append(slices.Clip(d.Taints), Taint(r))
		}
	}
	if changed == nil {
		return s
	}
	return changed
}
