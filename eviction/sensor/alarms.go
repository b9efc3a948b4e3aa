package sensor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

const (
	rungs   = 6       // of a ladder
	rung    = 2 << 20 // the kernel counts memory in batches, so that less says nothing
	settled = 3 * time.Second
)

// armed is what the alarms were set for.
type armed struct {
	at       time.Time
	distance int64 // to the nearest limit
	limits   map[signal.Signal][]int64
}

// seenQuick is what follows a look at memory: who waits is told, and the alarms are set when they are not where they
// should be.
func (s *Sensor) seenQuick(l look) {
	s.seen(l)
	if len(s.config.Alarms) == 0 {
		return
	}
	distance, steps := s.distances(l)
	if !s.stale(l, distance) {
		return
	}
	s.armed = armed{at: time.Now(), distance: distance, limits: l.limits}
	s.fired.Store(false)
	select { // the latest counts
	case <-s.ladder:
	default:
	}
	s.ladder <- steps
}

// distances are how far the nearest limit of memory is away, and the steps to it and to those behind it.
func (s *Sensor) distances(l look) (distance int64, steps []int64) {
	distance = -1
	var limits []int64
	for _, of := range []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable} {
		h := l.history[of]
		if len(h) == 0 || len(l.limits[of]) == 0 {
			continue
		}
		available := h[len(h)-1].Available
		left := nearest(available, l.limits[of])
		if distance < 0 || left < distance {
			distance = left
		}
		for _, limit := range l.limits[of] {
			if limit < available {
				limits = append(limits, available-limit)
			}
		}
	}
	return distance, ladder(distance, limits)
}

// ladder has steps that get shorter towards the nearest limit, so that there is time to look again however steep the
// way is, and one at each limit.
func ladder(distance int64, limits []int64) []int64 {
	if distance < 0 {
		return nil
	}
	steps := slices.Clone(limits)
	left := distance
	for range rungs {
		left /= 2
		if left < rung {
			break
		}
		steps = append(steps, distance-left)
	}
	for i := range steps {
		steps[i] = max(steps[i], 1)
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// stale says that the alarms should be set anew. They are left alone while memory goes fast: the steps are set in
// advance because setting them takes the kernel longer than there may be then.
func (s *Sensor) stale(l look, distance int64) bool {
	if s.armed.limits == nil || !maps.EqualFunc(s.armed.limits, l.limits, slices.Equal) {
		return true
	}
	if l.held || l.exhausts < settled || time.Since(s.armed.at) < time.Second {
		return false
	}
	moved := distance - s.armed.distance
	return s.fired.Load() || max(moved, -moved) > s.armed.distance/4
}

// setAlarms sets them whenever they are to be set.
func (s *Sensor) setAlarms(ctx context.Context) {
	failing := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case steps := <-s.ladder:
			for i, alarm := range s.config.Alarms {
				err := alarm.Set(steps)
				if err != nil && !failing[i] {
					s.config.Log.Warn("the kernel does not tell of memory that is taken; it is read more often", "error", err)
				}
				failing[i] = err != nil
			}
			covered := true
			for _, f := range failing {
				covered = covered && !f
			}
			s.covered.Store(covered)
			poke(s.quick.poked) // memory was taken while they were set
		}
	}
}
