package devicetainteviction

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// taint is one of a device, with what the request that has the device tolerates.
type taint struct {
	resourcev1.DeviceTaint

	device      string
	rule        string // that has it; "": the slice
	tolerations []resourcev1.DeviceToleration
	since       *metav1.Time // the device is the claim's
}

// deadline is when a pod has to go by the taints of its devices, and by which; nil: it need not. A taint says when it
// was added, so that the time is the same after a restart.
func deadline(all []taint, now time.Time) (time.Time, *taint) {
	var end time.Time
	var by *taint
	for i := range all {
		t := &all[i]
		if t.Effect != resourcev1.DeviceTaintEffectNoExecute {
			continue
		}
		left, forever := tolerated(t)
		if forever {
			continue
		}
		from := now
		if t.TimeAdded != nil {
			from = t.TimeAdded.Time
		}
		// Who has got a device that was tainted already has tolerated the taint from then on.
		if t.since != nil && t.since.After(from) {
			from = t.since.Time
		}
		if at := from.Add(left); by == nil || at.Before(end) {
			end, by = at, t
		}
	}
	return end, by
}

// tolerated is for how long a taint is: of several tolerations the shortest counts.
func tolerated(t *taint) (left time.Duration, forever bool) {
	limited := false
	for _, o := range t.tolerations {
		if !resourceclaim.ToleratesTaint(o, t.DeviceTaint) {
			continue
		}
		if o.TolerationSeconds == nil {
			forever = true
			continue
		}
		if d := time.Duration(max(0, *o.TolerationSeconds)) * time.Second; !limited || d < left {
			limited, left = true, d
		}
	}
	return left, forever && !limited
}
