package eviction

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

const (
	// keptReadings are as many as a pace can be drawn through.
	keptReadings = 32
	// hurriesNeeded is how many readings in a row have to say that the grace period is too long: one that strays is not
	// enough for a pod to go.
	hurriesNeeded = 2
	// hurryLook is how soon another reading is made then, of a time that is shorter than most grace periods.
	hurryLook = 20 * time.Millisecond
)

// watched is a threshold with what is known of it.
//
// It is not met (since is zero), met (since when), or acted upon (active), and it is not met again when there is as
// much as the threshold wants; one that was acted upon wants its minimum reclaim too. A signal that cannot be read
// leaves it as it is.
type watched struct {
	threshold.Threshold
	since   time.Time
	active  bool
	hurries int
}

// due is a threshold about which something is to be done now.
type due struct {
	watched *watched      // nil: the node stands still, or
	excess  *limit.Excess // a pod has more than it may
	reading signal.Reading
	crossed time.Time
	reason  string
}

// soft says whether the pod that goes has time to end.
func (d *due) soft() bool { return d.excess != nil || d.watched != nil && d.watched.Soft }

// grace is how much time, in seconds.
func (d *due) grace(pod *rank.Pod, p *threshold.Policy) int64 {
	if d.excess != nil {
		return limitGrace
	}
	return p.PodGrace(pod.Grace)
}

// need is how much more there has to be until there is enough.
func (d *due) need() int64 {
	if d.watched == nil {
		return 0
	}
	return max(d.watched.Enough(d.reading.Capacity)-d.reading.Available, 1)
}

// signal is that which falls short.
func (d *due) signal() signal.Signal {
	switch {
	case d.excess != nil:
		return d.excess.Signal
	case d.watched == nil:
		return signal.MemoryAvailable
	}
	return d.watched.Signal
}

// judge compares readings with thresholds. What it knows is all from readings, and from nobody else.
type judge struct {
	log     *slog.Logger
	watched []*watched // in the policy's order
	history map[signal.Signal][]signal.Reading
	// confirm and exhaustion are as in [Config].
	confirm    time.Duration
	exhaustion func(history []signal.Reading, limit int64) (time.Duration, bool)
}

func newJudge(c *Config) *judge {
	j := &judge{
		log: c.Log, history: map[signal.Signal][]signal.Reading{}, confirm: c.Confirm, exhaustion: c.Exhaustion,
	}
	for _, t := range c.Policy.Thresholds {
		j.watched = append(j.watched, &watched{Threshold: t})
	}
	return j
}

// remember keeps the latest readings.
func (j *judge) remember(readings signal.Readings) {
	for of, r := range readings {
		h := append(j.history[of], r)
		j.history[of] = slices.Clone(h[max(0, len(h)-keptReadings):])
	}
}

// latest is the last reading of a signal; false: it was never read.
func (j *judge) latest(of signal.Signal) (signal.Reading, bool) {
	h := j.history[of]
	if len(h) == 0 {
		return signal.Reading{}, false
	}
	return h[len(h)-1], true
}

// compare brings the thresholds up to date, and returns those about which something is to be done, the most pressing
// first: memory before all else, as by kubelet; hard thresholds before soft ones; then those of which there is least.
// eased are the signals of which there is enough again.
func (j *judge) compare(readings signal.Readings, now time.Time, next *earliest) (out []due, eased []signal.Signal) {
	for _, w := range j.watched {
		r, ok := readings[w.Signal]
		if !ok {
			continue
		}
		if !w.met(r) {
			if w.ease(r, now, j.log) {
				eased = append(eased, w.Signal)
			}
			continue
		}
		w.begin(r, now, j.log)
		if reason := j.step(w, r, now, next); reason != "" {
			w.active = true
			out = append(out, due{watched: w, reading: r, crossed: w.since, reason: reason})
		}
	}
	slices.SortStableFunc(out, func(a, b due) int {
		return cmp.Or(
			rank.TrueFirst(a.signal().Resource() == corev1.ResourceMemory, b.signal().Resource() == corev1.ResourceMemory),
			rank.TrueFirst(!a.soft(), !b.soft()), cmp.Compare(a.left(), b.left()),
		)
	})
	return out, eased
}

// left is the share of a threshold that is there.
func (d *due) left() float64 {
	return float64(d.reading.Available) / float64(max(d.watched.At(d.reading.Capacity), 1))
}

// met says whether there is too little, or not enough yet after something was done.
func (w *watched) met(r signal.Reading) bool {
	return w.Met(r) || w.active && r.Available < w.Enough(r.Capacity)
}

// begin notes since when a threshold is met.
func (w *watched) begin(r signal.Reading, now time.Time, log *slog.Logger) {
	if !w.since.IsZero() {
		return
	}
	w.since = now
	log.Info("eviction threshold is met", "signal", string(w.Signal), "kind", w.Kind(),
		"threshold", w.String(), "available", r.Available, "capacity", r.Capacity)
}

// ease forgets what was known of a threshold that is not met, and says whether it was until now.
func (w *watched) ease(r signal.Reading, now time.Time, log *slog.Logger) bool {
	if w.since.IsZero() {
		return false
	}
	log.Info("eviction threshold is met no more", "signal", string(w.Signal), "kind", w.Kind(),
		"threshold", w.String(), "available", r.Available, "after", now.Sub(w.since))
	w.since, w.active, w.hurries = time.Time{}, false, 0
	return true
}

// step says why something is to be done about a threshold that is met; "": nothing is.
func (j *judge) step(w *watched, r signal.Reading, now time.Time, next *earliest) string {
	switch {
	case !j.settled(w, r, now):
		next.add(now.Add(min(j.confirm, w.since.Add(j.needs(w, r)).Sub(now))))
		return ""
	case !w.Soft:
		return "hard threshold"
	case w.active || now.Sub(w.since) >= w.Grace:
		return "soft threshold, met for " + now.Sub(w.since).Round(time.Millisecond).String()
	}
	next.add(w.since.Add(w.Grace))
	return j.hurry(w, now, next)
}

// hurry says whether a soft threshold cannot wait: at the pace of now the hard one, or the end, comes before its grace
// period is over.
func (j *judge) hurry(w *watched, now time.Time, next *earliest) string {
	if j.exhaustion == nil {
		return ""
	}
	left, known := j.exhaustion(j.history[w.Signal], j.hardLimit(w.Signal))
	if rest := w.since.Add(w.Grace).Sub(now); !known || left >= rest {
		w.hurries = 0
		return ""
	}
	if w.hurries++; w.hurries < hurriesNeeded {
		next.add(now.Add(hurryLook))
		return ""
	}
	return "soft threshold, before its grace period is over: exhausted in " + left.Round(time.Millisecond).String()
}

// hardLimit is what is to be left of a signal at any price; 0: it has no hard threshold.
func (j *judge) hardLimit(of signal.Signal) int64 {
	r, _ := j.latest(of)
	for _, w := range j.watched {
		if w.Signal == of && !w.Soft {
			return w.At(r.Capacity)
		}
	}
	return 0
}

// doubted is how many times longer a threshold has to be met to be believed where it may be met by what the kernel does
// not say the use of yet. It has most often said so by then.
const doubted = 10

// settled says whether a threshold that is met has been for long enough to be believed. A group's memory and its
// file cache are counted by the kernel apart, and what it says of the cache can lag behind by moments: then cache
// that is being filled looks like memory in use.
func (j *judge) settled(w *watched, r signal.Reading, now time.Time) bool {
	return now.Sub(w.since) >= j.needs(w, r)
}

// needs is how long that is.
func (j *judge) needs(w *watched, r signal.Reading) time.Duration {
	if w.Signal.Resource() != corev1.ResourceMemory {
		return 0
	}
	if r.Doubt > 0 && !w.met(signal.Reading{Available: r.Available + r.Doubt, Capacity: r.Capacity}) {
		return doubted * j.confirm
	}
	return j.confirm
}

// conditions are those that thresholds speak for, whatever their grace periods.
func (j *judge) conditions(now time.Time) map[corev1.NodeConditionType]bool {
	out := map[corev1.NodeConditionType]bool{}
	for _, w := range j.watched {
		if r, _ := j.latest(w.Signal); !w.since.IsZero() && j.settled(w, r, now) {
			out[w.Signal.Condition()] = true
		}
	}
	return out
}

// time is how much of it there is for something before a pod goes, as to count files: not so much that nothing is left
// by then, at the pace of now.
func (j *judge) time(of signal.Signal, least, most time.Duration) time.Duration {
	if j.exhaustion == nil {
		return most
	}
	left, known := j.exhaustion(j.history[of], 0)
	if !known {
		return most
	}
	return min(max(left/4*3, least), most)
}

// limits are the amounts that matter of each signal, the most pressing last. They are shares of capacities, which
// change when a file system grows; of what cannot be read now they are those of before.
func (j *judge) limits(readings signal.Readings, before map[signal.Signal][]int64) map[signal.Signal][]int64 {
	limits := map[signal.Signal][]int64{}
	maps.Copy(limits, before)
	for of := range readings {
		delete(limits, of)
	}
	for _, w := range j.watched {
		if r, ok := readings[w.Signal]; ok {
			limits[w.Signal] = append(limits[w.Signal], w.At(r.Capacity))
		}
	}
	for of := range readings {
		slices.SortFunc(limits[of], func(a, b int64) int { return cmp.Compare(b, a) })
	}
	return limits
}
