package sensor

import (
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

const (
	// slow is the interval of looks that only back the events.
	slow = 10 * time.Second
	// never is a time that does not come.
	never = time.Duration(math.MaxInt64)
	// looks is how many looks there are before a limit is met, if things go on as they do.
	looks = 20
	// far is the least time between two looks that follow from events while no limit is near.
	far = 100 * time.Millisecond
)

// pace is how often a signal is looked at.
type pace struct {
	// fast is the shortest interval, and calm the shortest as long as there is not less of it.
	fast, calm time.Duration
	// rate is how much of it may be gone in a second without a word from the kernel; 0 where it tells.
	rate int64
	// most is how much of it may be gone in a second, whoever tells. A limit that is not met before soon at that pace
	// is far.
	most int64
	soon time.Duration
	// patient looks are rarer the longer nothing has changed: the kernel tells of a part of what can change it, as by
	// the pressure that writing much to a disk or making many processes brings.
	patient bool
}

const gib = 1 << 30

var (
	// diskPace is for the file systems of a node: a fast disk takes a gigabyte a second.
	diskPace = pace{fast: 50 * time.Millisecond, calm: time.Second, rate: gib, most: gib, soon: slow, patient: true}
	// inodePace is for their inodes, of which a processor makes some hundred thousand a second.
	inodePace = pace{fast: 50 * time.Millisecond, calm: time.Second, rate: 500_000, most: 500_000, soon: slow, patient: true}
	// pidPace is for process IDs: a processor makes some ten thousand processes in a second.
	pidPace = pace{fast: 20 * time.Millisecond, calm: time.Second, rate: 10_000, most: 10_000, soon: 2 * time.Second, patient: true}
)

// MemoryRate is how many bytes of memory can be gone in a second. A processor fills up to two gigabytes with zeros in a
// second.
func MemoryRate() int64 { return 2 * gib * int64(min(runtime.NumCPU(), 8)) }

func memoryPace(covered bool) pace {
	p := pace{fast: 10 * time.Millisecond, calm: 20 * time.Millisecond, most: MemoryRate(), soon: 2 * time.Second}
	if !covered {
		p.rate, p.soon = MemoryRate(), slow
	}
	return p
}

func slowPace(of signal.Signal) pace {
	switch of {
	case signal.NodeFsInodesFree, signal.ImageFsInodesFree, signal.ContainerFsInodesFree:
		return inodePace
	default:
		return diskPace
	}
}

func (s *Sensor) quickPace(of signal.Signal) pace {
	if of == signal.PIDAvailable {
		return pidPace
	}
	// Once an alarm has told, others may have been passed as well, until all are set anew.
	return memoryPace(s.covered.Load() && !s.fired.Load())
}

// next is how long the next look can wait, by the last readings and the limits of a signal: the shorter the nearer its
// next limit is, and the sooner it comes at the pace of now.
func (p pace) next(history []signal.Reading, limits []int64) time.Duration {
	if len(history) == 0 {
		return slow
	}
	left := nearest(history[len(history)-1].Available, limits)
	next := slow
	if p.rate > 0 {
		next = min(next, max(p.calm, seconds(float64(left)/float64(p.rate)/2)))
		if p.patient {
			next = max(next, min(slow, unchanged(history)))
		}
	}
	if e := exhausts(history, limits); e < never {
		next = min(next, max(p.fast, e/looks))
	}
	return next
}

// near says that the next limit may be met before long, by how much there is left, or by the pace of the last readings.
func (p pace) near(history []signal.Reading, limits []int64) bool {
	if len(history) == 0 || len(limits) == 0 {
		return false
	}
	left := nearest(history[len(history)-1].Available, limits)
	return float64(left) < float64(p.most)*p.soon.Seconds() || exhausts(history, limits) < time.Minute
}

// unchanged is for how long there has been as much as now, but for a thousandth.
func unchanged(history []signal.Reading) time.Duration {
	last := history[len(history)-1]
	since := last.Time
	for _, r := range slices.Backward(history) {
		if by := r.Available - last.Available; max(by, -by) > last.Available/1000 {
			break
		}
		since = r.Time
	}
	return last.Time.Sub(since)
}

// nearest is how much can be taken until the next limit is met. Below all limits that is all there is.
func nearest(available int64, limits []int64) int64 {
	left := available
	for _, limit := range limits {
		if limit < available {
			left = min(left, available-limit)
		}
	}
	return max(left, 0)
}

// exhausts is how soon the next limit is met at the pace of the last readings.
func exhausts(history []signal.Reading, limits []int64) time.Duration {
	if len(history) == 0 {
		return never
	}
	available := history[len(history)-1].Available
	if e, ok := signal.Exhaustion(history, available-nearest(available, limits)); ok && available > 0 {
		return e
	}
	return never
}

// tell is how long ago the last word to who waits may be. He draws slopes as well, for which he has to hear more often
// when they are steep.
func tell(exhausts time.Duration) time.Duration {
	if exhausts > time.Minute {
		return slow
	}
	return min(slow, max(100*time.Millisecond, exhausts/looks))
}

func seconds(s float64) time.Duration {
	if s >= slow.Seconds() {
		return slow
	}
	return time.Duration(s * float64(time.Second))
}

// DiskPace is how long the next look at a part of a disk can wait, by the last readings of how much may be written to
// it still, and by the amounts that matter of that.
func DiskPace(history []signal.Reading, limits []int64) time.Duration {
	return diskPace.next(history, limits)
}
