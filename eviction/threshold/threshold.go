// Package threshold says how little of what a node has is too little: kubelet's settings of eviction, read, checked and
// compared. It is pure.
package threshold

import (
	"fmt"
	"strconv"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// Value is an amount, or a share of the capacity of what it is an amount of.
type Value struct {
	Quantity int64   // bytes, inodes or process IDs; of no meaning when there is a percentage
	Percent  float64 // more than 0, at most 100; 0: it is a quantity
}

// Of is the amount with a capacity.
func (v Value) Of(capacity int64) int64 {
	if v.Percent == 0 {
		return v.Quantity
	}
	return int64(float64(capacity) * v.Percent / 100)
}

// Format writes a value of a signal as settings have it.
func (v Value) Format(of signal.Signal) string {
	if v.Percent == 0 {
		return of.Format(v.Quantity)
	}
	return strconv.FormatFloat(v.Percent, 'f', -1, 64) + "%"
}

// Threshold is what is to be left of something. It can be compared, and so is a key.
type Threshold struct {
	Signal signal.Signal
	Value  Value // less than that is too little
	// MinReclaim is how much more there has to be until it is enough again.
	MinReclaim Value
	// Soft thresholds have to be met for as long as Grace before a pod goes, and pods have time to end.
	Soft  bool
	Grace time.Duration
}

// At is the amount below which the threshold is met, of that capacity.
func (t Threshold) At(capacity int64) int64 { return t.Value.Of(capacity) }

// Enough is the amount from which on a threshold that was met is left in peace again. A minimum reclaim that comes to
// all there is, or to more, counts as none: there would never be enough, and one pod would go after the other until
// none is left, for a threshold that was met once.
func (t Threshold) Enough(capacity int64) int64 {
	at, more := t.At(capacity), t.MinReclaim.Of(capacity)
	if more < capacity-at { // at is not negative, so that this does not overflow
		return at + more
	}
	return at
}

// Met says whether there is too little of it.
func (t Threshold) Met(r signal.Reading) bool { return r.Available < t.At(r.Capacity) }

// Kind is "hard" or "soft".
func (t Threshold) Kind() string {
	if t.Soft {
		return "soft"
	}
	return "hard"
}

// String writes a threshold as settings have it.
func (t Threshold) String() string {
	return fmt.Sprintf("%s<%s", t.Signal, t.Value.Format(t.Signal))
}
