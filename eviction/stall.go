package eviction

import (
	"fmt"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// Stall is when a node stands still for want of memory: as many percent of the time, and for so long.
type Stall struct {
	// Full is the share of the last ten seconds in which nothing ran that could, since all waited for memory, in
	// percent: the kernel's pressure stall information.
	Full  func() (float64, error)
	Above float64
	For   time.Duration
}

// standstill is a [Stall] with what is known of it.
type standstill struct {
	stall *Stall // nil: nobody looks
	since time.Time
}

// look says whether the node has stood still for long enough that a pod has to go.
func (s *standstill) look(readings signal.Readings, now time.Time, next *earliest) *due {
	if s.stall == nil {
		return nil
	}
	full, err := s.stall.Full()
	if err != nil || full <= s.stall.Above {
		s.over()
		return nil
	}
	if s.since.IsZero() {
		s.since = now
	}
	if now.Sub(s.since) < s.stall.For {
		next.add(s.since.Add(s.stall.For))
		return nil
	}
	return &due{
		reading: readings[signal.MemoryAvailable], crossed: s.since,
		reason: "the node stands still for want of memory: " + formatShare(full) + " of the last 10 s, for " +
			now.Sub(s.since).Round(time.Millisecond).String(),
	}
}

// over has the time begin anew.
func (s *standstill) over() { s.since = time.Time{} }

func formatShare(percent float64) string { return fmt.Sprintf("%.1f%%", percent) }
