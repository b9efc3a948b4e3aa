package threshold

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// defaultTransition is how long a condition outlasts the pressure that it tells of, as by kubelet.
const defaultTransition = 5 * time.Minute

// Defaults is evictionHard of a node whose configuration does not have it, as by kubelet.
func Defaults() map[string]string {
	return map[string]string{
		string(signal.MemoryAvailable):   "100Mi",
		string(signal.NodeFsAvailable):   "10%",
		string(signal.NodeFsInodesFree):  "5%",
		string(signal.ImageFsAvailable):  "15%",
		string(signal.ImageFsInodesFree): "5%",
	}
}

// Settings are the fields of KubeletConfiguration that have to do with eviction. The maps are by signal.
type Settings struct {
	Hard map[string]string // evictionHard; nil: [Defaults]; empty: none
	Soft map[string]string // evictionSoft

	SoftGrace  map[string]string // evictionSoftGracePeriod: each signal of Soft needs one
	MinReclaim map[string]string // evictionMinimumReclaim

	// MergeDefaults is mergeDefaultEvictionSettings: a signal that Hard does not name has its default. Without, Hard is
	// all there is.
	MergeDefaults bool
	// EnforceAllocatable says that pods are together limited to what is allocatable, so that what they have of that is
	// watched as what the node has is.
	EnforceAllocatable bool

	Transition  time.Duration // evictionPressureTransitionPeriod; 0: 5 min, as by kubelet
	MaxPodGrace int64         // evictionMaxPodGracePeriod in seconds; negative: as long as the pod asks for
}

// Policy is what settings come to.
type Policy struct {
	Thresholds  []Threshold // a signal's hard one before its soft one, memory first
	Transition  time.Duration
	MaxPodGrace int64
}

// Policy checks the settings, and says everything that is wrong with them, by the names of the flags.
func (s Settings) Policy() (Policy, error) {
	hard, err := s.thresholds(flagHard, s.hard())
	soft, softErr := s.thresholds(flagSoft, s.Soft)
	errs := []error{err, softErr, s.setGraces(soft), s.setReclaims(hard, soft), s.checkTimes()}
	if err := errors.Join(errs...); err != nil {
		return Policy{}, err
	}
	s.addAllocatable(hard)
	p := Policy{Transition: s.Transition, MaxPodGrace: s.MaxPodGrace}
	if p.Transition == 0 {
		p.Transition = defaultTransition
	}
	for _, of := range signal.All() {
		for _, kind := range []map[signal.Signal]Threshold{hard, soft} {
			if t, ok := kind[of]; ok {
				p.Thresholds = append(p.Thresholds, t)
			}
		}
	}
	return p, nil
}

// hard is evictionHard with what it leaves to the defaults.
func (s Settings) hard() map[string]string {
	if s.Hard == nil {
		return Defaults()
	}
	if !s.MergeDefaults {
		return s.Hard
	}
	out := Defaults()
	maps.Copy(out, s.Hard)
	return out
}

// thresholds reads a map of them. One that is off is not among them.
func (s Settings) thresholds(flag string, values map[string]string) (map[signal.Signal]Threshold, error) {
	out := map[signal.Signal]Threshold{}
	err := each(flag, values, func(of signal.Signal, text string) error {
		v, err := parseValue(flag, of, text)
		if errors.Is(err, errOff) {
			return nil
		}
		out[of] = Threshold{Signal: of, Value: v, Soft: flag == flagSoft}
		return err
	})
	return out, err
}

// setGraces gives soft thresholds their grace periods. One for a signal without a soft threshold says nothing.
func (s Settings) setGraces(soft map[signal.Signal]Threshold) error {
	graces := map[signal.Signal]time.Duration{}
	err := each(flagSoftGrace, s.SoftGrace, func(of signal.Signal, text string) error {
		d, err := parseGrace(of, text)
		graces[of] = d
		return err
	})
	for _, of := range slices.Sorted(maps.Keys(soft)) {
		t := soft[of]
		grace, ok := graces[of]
		if !ok {
			err = errors.Join(err, fmt.Errorf("%s %s: has no grace period: give it one, such as %s %s=1m30s",
				flagSoft, t, flagSoftGrace, of))
		}
		t.Grace = grace
		soft[of] = t
	}
	return err
}

// setReclaims gives thresholds what is to be freed beyond them.
func (s Settings) setReclaims(all ...map[signal.Signal]Threshold) error {
	return each(flagMinReclaim, s.MinReclaim, func(of signal.Signal, text string) error {
		v, err := parseReclaim(of, text)
		for _, kind := range all {
			if t, ok := kind[of]; ok {
				t.MinReclaim = v
				kind[of] = t
			}
		}
		return err
	})
}

// checkTimes refuses what goes backwards.
func (s Settings) checkTimes() error {
	if s.Transition < 0 {
		return fmt.Errorf("--eviction-pressure-transition-period %s: must not be negative: leave it out for %s",
			s.Transition, defaultTransition)
	}
	return nil
}

// addAllocatable has the memory of all pods together watched by the threshold for the node's, as kubelet does: the
// limit that pods have together is met before the node's end, and then the kernel kills.
func (s Settings) addAllocatable(hard map[signal.Signal]Threshold) {
	t, ok := hard[signal.MemoryAvailable]
	if _, own := s.Hard[string(signal.AllocatableMemoryAvailable)]; own || !ok || !s.EnforceAllocatable {
		return
	}
	t.Signal = signal.AllocatableMemoryAvailable
	hard[t.Signal] = t
}

// each goes through a map of settings in order, and joins what is wrong with them.
func each(flag string, values map[string]string, do func(of signal.Signal, text string) error) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		of, err := parseSignal(flag, name)
		if err == nil {
			err = do(of, values[name])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// longestGrace is what a pod has at most that may have any, in seconds: the API takes more than a duration can be.
const longestGrace = 365 * 24 * 60 * 60

// PodGrace is how many seconds a pod has that asks for some and goes for the sake of a soft threshold: at most the
// policy's. A hard threshold leaves none.
func (p Policy) PodGrace(asked int64) int64 {
	if p.MaxPodGrace < 0 {
		return min(max(asked, 0), longestGrace)
	}
	return max(min(asked, p.MaxPodGrace), 0)
}
