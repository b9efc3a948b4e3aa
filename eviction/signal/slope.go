package signal

import (
	"math"
	"slices"
	"time"
)

const (
	// slopeReadings is how many of the last readings a slope is drawn through: enough for one that strays to have no
	// say.
	slopeReadings = 9
	// slopeWindow is from how long ago they are at least considered. Readings from a time when one every ten seconds
	// was enough say nothing about the last tenth of a second.
	slopeWindow = time.Second
	// slopeSpan is from how long a time they are at least: within a few milliseconds what is available goes up and down
	// by megabytes.
	slopeSpan = 100 * time.Millisecond
)

// Exhaustion is how long it takes from the last reading until there is no more than limit, at the pace of the last
// readings; false when there is not less and less of it, or nobody knows yet. The readings are in the order of their
// times. The pace is the median of the slopes between any two of them, so that one reading that strays does not matter,
// and what was taken at one blow is no pace.
func Exhaustion(history []Reading, limit int64) (time.Duration, bool) {
	if len(history) == 0 {
		return 0, false
	}
	last := history[len(history)-1]
	if last.Available <= limit {
		return 0, true
	}
	var room [slopeReadings]Reading
	readings := recent(room[:0], history)
	pace, ok := slope(readings)
	if !ok || pace >= 0 || !steady(readings, pace) {
		return 0, false
	}
	seconds := (float64(last.Available) - float64(limit)) / -pace
	if seconds >= math.MaxInt64/float64(time.Second) {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// slope is how much more there is with every second; false when there are too few readings to know.
func slope(readings []Reading) (perSecond float64, ok bool) {
	if len(readings) < 3 || readings[len(readings)-1].Time.Sub(readings[0].Time) < slopeSpan {
		return 0, false
	}
	slopes := make([]float64, 0, slopeReadings*(slopeReadings-1)/2)
	for i, a := range readings {
		for _, b := range readings[i+1:] {
			if seconds := b.Time.Sub(a.Time).Seconds(); seconds > 0 {
				slopes = append(slopes, (float64(b.Available)-float64(a.Available))/seconds)
			}
		}
	}
	if len(slopes) == 0 {
		return 0, false
	}
	slices.Sort(slopes)
	return (slopes[(len(slopes)-1)/2] + slopes[len(slopes)/2]) / 2, true
}

// steady says that it went down again and again: in a third of the steps at least, by a fourth of what the pace makes
// of them.
func steady(readings []Reading, pace float64) bool {
	down := 0
	for i, b := range readings[1:] {
		a := readings[i]
		if float64(b.Available)-float64(a.Available) <= pace*b.Time.Sub(a.Time).Seconds()/4 {
			down++
		}
	}
	return 3*down >= len(readings)-1
}

// recent are the readings that say something about the pace of now: the last ones, but for those that are too close to
// one after them. They are put into out, which is empty.
func recent(out, history []Reading) []Reading {
	if len(history) < 2 {
		return nil
	}
	last := history[len(history)-1]
	window := max(slopeWindow, 4*last.Time.Sub(history[len(history)-2].Time))
	for _, r := range slices.Backward(history) {
		if last.Time.Sub(r.Time) > window || len(out) == slopeReadings {
			break
		}
		if len(out) == 0 || out[len(out)-1].Time.Sub(r.Time) >= slopeSpan/(slopeReadings-1) {
			out = append(out, r)
		}
	}
	slices.Reverse(out)
	return out
}
