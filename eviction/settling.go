package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/signal"
)

// settlePatience is how long what was deleted may take to be free, and settleLook how often that is looked at: some
// file systems give back in the background, and tell nobody.
const settlePatience, settleLook = 5 * time.Second, 50 * time.Millisecond

// settling is what was given back of disks, and may be free only in a moment. What a dead process had of memory and of
// process IDs is free when it is dead.
type settling map[corev1.ResourceName]givenBack

// givenBack is what there is when it has all come, and how long that is waited for.
type givenBack struct {
	of       signal.Signal
	expected int64 // available
	until    time.Time
}

// begin has the next pod wait until it is seen that what was given back is there: the whole of it, as the first blocks
// are free long before the last of a large file.
func (s settling) begin(l *landing, now time.Time) {
	of, available := l.decision.Signal, l.decision.Available
	if hard := l.flight.hard; hard != nil && l.flight.due.excess != nil {
		of, available = hard.signal(), hard.reading.Available // the node waits for what one has too much
	}
	if of.Condition() == corev1.NodeDiskPressure {
		s[of.Resource()] = givenBack{of, available + max(1, l.decision.given()), now.Add(settlePatience)}
	}
}

// given is what a decision gives back, in what its signal counts: not all of what was counted is sure to be there.
func (d *Decision) given() int64 {
	for i := range d.Ranked {
		if of := &d.Ranked[i].Pod; of.UID == d.Pod.UID && of.Known {
			return of.Usage / 10 * 9
		}
	}
	return 0
}

// waits says whether what was given back of a resource is not seen yet in the latest readings.
func (s settling) waits(
	resource corev1.ResourceName, latest func(signal.Signal) (signal.Reading, bool), now time.Time,
) bool {
	g, ok := s[resource]
	if !ok {
		return false
	}
	if r, known := latest(g.of); known && r.Available >= g.expected || !now.Before(g.until) {
		delete(s, resource)
		return false
	}
	return true
}
