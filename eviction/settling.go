package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/signal"
)

// How long what was given back may take to be free, and how often that is looked at: nobody tells. Some file systems
// free in the background. What a dead process had of memory is free when it is dead, but files in memory stay as long
// as any mount namespace has a copy of what they are in, and one that is just being made for a container does.
const (
	diskPatience, diskLook     = 5 * time.Second, 50 * time.Millisecond
	memoryPatience, memoryLook = time.Second, 10 * time.Millisecond
)

// memorySlack is how much less memory there may be, while some is to come back, until the next pod goes all the same:
// others take it.
const memorySlack = 16 << 20

// diskStep is the share of what is to come back to a disk that has to come within its patience to be waited for
// further: to remove millions of files takes minutes, and a pod has them until the last is gone.
const diskStep = 100

// settling is what was given back of a resource, and may be free only in a moment. What was given back of process IDs
// is.
type settling map[corev1.ResourceName]*givenBack

// restPatience is that for the rest of what nobody needs: the node has waited for most of it.
const restPatience = 500 * time.Millisecond

// diskLeast is the patience that is left in the end where what disks were given back did not come again and again: as
// others take it at once, and go themselves, the sooner the better.
const diskLeast = 2 * time.Second

// givenBack is what there is when it has all come, and how long that is waited for.
type givenBack struct {
	of       signal.Signal
	expected int64 // available
	patience time.Duration
	until    time.Time
	first    int64         // available at its beginning, of disks
	most     int64         // that was available since; of memory 0: not looked yet
	step     int64         // so much more is worth another patience; of disks
	vain     bool          // it did not come
	pod      bool          // it is of a pod that went for a disk
	next     time.Duration // patience for the next of these
}

// begin has the next pod wait until it is seen that what was given back is there: the whole of it, as the first blocks
// are free long before the last of a large file.
func (s settling) begin(l *landing, now time.Time) {
	of, available := l.decision.Signal, l.decision.Available
	if hard := l.flight.hard; hard != nil && l.flight.due.excess != nil {
		of, available = hard.signal(), hard.reading.Available // the node waits for what one has too much
	}
	g := &givenBack{of: of, expected: available + max(1, l.decision.given()), patience: memoryPatience}
	switch {
	case of.Resource() == corev1.ResourceMemory:
	case of.Condition() == corev1.NodeDiskPressure:
		g.first, g.most = available, available
		g.step, g.next = max((g.expected-available)/diskStep, 1), diskPatience
		if before := s[of.Resource()]; before != nil {
			g.next = before.next
		}
		g.pod = l.decision.Pod != (Name{})
		if g.patience = restPatience; g.pod {
			g.patience = g.next
		}
	default:
		return
	}
	g.until = now.Add(g.patience)
	s[of.Resource()] = g
}

// eased forgets what is known of a resource of which there is enough again.
func (s settling) eased(resource corev1.ResourceName) {
	switch g := s[resource]; {
	case g == nil:
	case g.vain:
		delete(s, resource)
	default: // somebody wants to know how much it comes to
		g.pod, g.next = false, diskPatience
	}
}

// given is what a decision gives back, in what its signal counts: not all of what was counted is sure to be there.
func (d *Decision) given() int64 {
	if d.Pod == (Name{}) {
		return d.Reclaimed / 10 * 9
	}
	for i := range d.Ranked {
		if of := &d.Ranked[i].Pod; of.UID == d.Pod.UID && of.Known {
			return of.Usage / 10 * 9
		}
	}
	return 0
}

// taken says whether others take what has come to a disk: more than half of it is gone again.
func (g *givenBack) taken(available int64) bool {
	came := g.most - g.first
	return g.step > 0 && came >= g.step && g.most-available > came/2
}

// waits says whether what was given back of a resource is not seen yet in the latest readings, and when to look again.
func (s settling) waits(
	resource corev1.ResourceName, latest func(signal.Signal) (signal.Reading, bool), now time.Time,
) (bool, time.Time) {
	g, ok := s[resource]
	if !ok || g.vain {
		return false, time.Time{}
	}
	r, known := latest(g.of)
	if known && g.step > 0 && r.Available >= g.most+g.step {
		g.most, g.until = r.Available, now.Add(g.patience)
	}
	if known && r.Available >= g.expected {
		delete(s, resource)
		return false, time.Time{}
	}
	if !now.Before(g.until) || known && g.taken(r.Available) {
		if g.vain = true; g.pod {
			g.next = max(g.patience/2, diskLeast)
		}
		return false, time.Time{}
	}
	if resource != corev1.ResourceMemory {
		return true, now.Add(diskLook)
	}
	if known && r.Available < g.most-memorySlack {
		delete(s, resource)
		return false, time.Time{}
	}
	if known {
		g.most = max(g.most, r.Available)
	}
	return true, now.Add(memoryLook)
}
