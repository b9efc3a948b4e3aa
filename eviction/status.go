package eviction

import (
	"slices"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// Status is the state of eviction.
type Status struct {
	Readings   signal.Readings   `json:"readings"`
	Thresholds []ThresholdStatus `json:"thresholds"`
	Conditions Conditions        `json:"conditions"`
	// Busy are the signals about which something is being done.
	Busy []signal.Signal `json:"busy,omitempty"`
}

// ThresholdStatus is a threshold, and since when it is met.
type ThresholdStatus struct {
	Threshold string        `json:"threshold"`
	Signal    signal.Signal `json:"signal"`
	Soft      bool          `json:"soft,omitempty"`
	Grace     time.Duration `json:"grace,omitempty"`
	Limit     int64         `json:"limit"`            // of the capacity of now
	Enough    int64         `json:"enough"`           // from which on it is left in peace again
	Met       time.Time     `json:"met,omitzero"`     // since when; zero: it is not
	Acting    bool          `json:"acting,omitempty"` // something is done about it
}

// publish has others see how things are.
func (m *Manager) publish(readings signal.Readings, conditions Conditions) {
	s := Status{Readings: readings, Thresholds: m.judge.status(readings), Conditions: conditions}
	for _, f := range m.flights {
		s.Busy = append(s.Busy, f.due.signal())
	}
	slices.Sort(s.Busy)
	s.Busy = slices.Compact(s.Busy)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = s
}

// Status is the state at the last look. The caller must not change what it refers to.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// Decisions are the latest, the oldest first. The caller must not change what they refer to.
func (m *Manager) Decisions() []Decision { return m.journal.latest() }

// Counts are how many pods were evicted, by signal.
func (m *Manager) Counts() map[signal.Signal]uint64 { return m.journal.evicted() }
