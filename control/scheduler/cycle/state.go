// Package cycle is what plugins hand on to each other, and to themselves, during one attempt to schedule a pod.
package cycle

import (
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// State is that of one attempt. It is written a few times, by phases that go on one after the other, and read for each
// of many nodes by several goroutines: so each write makes the list of its few entries anew, and a read takes no lock.
type State struct {
	mu      sync.Mutex // of writers
	entries atomic.Pointer[[]entry]

	skipFilter, skipScore, skipPreBind, parallelPreBind sets.Set[string]

	// skipMask is skipFilter by number, as who runs filters has counted them; counted says that it is.
	skipMask uint64
	counted  bool

	skipPostFilter bool
	grouped        bool
	group          fwk.PodGroupCycleState
	placement      fwk.PlacementCycleState
}

type entry struct {
	key   fwk.StateKey
	value fwk.StateData
}

var _ fwk.CycleState = (*State)(nil)

// NewState makes a state with nothing in it.
func NewState() *State { return &State{} }

// Read implements [fwk.CycleState].
func (s *State) Read(key fwk.StateKey) (fwk.StateData, error) {
	if all := s.entries.Load(); all != nil {
		for i := range *all {
			if (*all)[i].key == key {
				return (*all)[i].value, nil
			}
		}
	}
	return nil, fwk.ErrNotFound
}

// Write implements [fwk.CycleState].
func (s *State) Write(key fwk.StateKey, value fwk.StateData) {
	s.change(key, func(all []entry) []entry { return append(all, entry{key, value}) })
}

// Delete implements [fwk.CycleState].
func (s *State) Delete(key fwk.StateKey) {
	s.change(key, func(all []entry) []entry { return all })
}

func (s *State) change(key fwk.StateKey, then func([]entry) []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []entry
	if before := s.entries.Load(); before != nil {
		all = make([]entry, 0, len(*before)+1)
		for _, e := range *before {
			if e.key != key {
				all = append(all, e)
			}
		}
	}
	all = then(all)
	s.entries.Store(&all)
}

// Clone implements [fwk.CycleState].
func (s *State) Clone() fwk.CycleState {
	if s == nil {
		return nil
	}
	c := &State{
		skipFilter: s.skipFilter.Clone(), skipScore: s.skipScore.Clone(), skipPreBind: s.skipPreBind.Clone(),
		parallelPreBind: s.parallelPreBind.Clone(), skipMask: s.skipMask, counted: s.counted, skipPostFilter: s.skipPostFilter,
		grouped: s.grouped, group: s.group, placement: s.placement,
	}
	if before := s.entries.Load(); before != nil {
		all := slices.Clone(*before)
		for i := range all {
			all[i].value = all[i].value.Clone()
		}
		c.entries.Store(&all)
	}
	return c
}

// ShouldRecordPluginMetrics implements [fwk.CycleState].
func (s *State) ShouldRecordPluginMetrics() bool { return false }

// GetSkipFilterPlugins implements [fwk.CycleState].
func (s *State) GetSkipFilterPlugins() sets.Set[string] { return s.skipFilter }

// SetSkipFilterPlugins implements [fwk.CycleState].
func (s *State) SetSkipFilterPlugins(plugins sets.Set[string]) {
	s.skipFilter, s.counted = plugins, false
}

// CountSkipped notes the plugins to be skipped as bits, for who asks about each of them for each node.
func (s *State) CountSkipped(mask uint64) { s.skipMask, s.counted = mask, true }

// Skipped are those bits, and whether they are known.
func (s *State) Skipped() (mask uint64, counted bool) { return s.skipMask, s.counted }

// GetSkipScorePlugins implements [fwk.CycleState].
func (s *State) GetSkipScorePlugins() sets.Set[string] { return s.skipScore }

// SetSkipScorePlugins implements [fwk.CycleState].
func (s *State) SetSkipScorePlugins(plugins sets.Set[string]) { s.skipScore = plugins }

// GetSkipPreBindPlugins implements [fwk.CycleState].
func (s *State) GetSkipPreBindPlugins() sets.Set[string] { return s.skipPreBind }

// SetSkipPreBindPlugins implements [fwk.CycleState].
func (s *State) SetSkipPreBindPlugins(plugins sets.Set[string]) { s.skipPreBind = plugins }

// GetParallelPreBindPlugins implements [fwk.CycleState].
func (s *State) GetParallelPreBindPlugins() sets.Set[string] { return s.parallelPreBind }

// SetParallelPreBindPlugins implements [fwk.CycleState].
func (s *State) SetParallelPreBindPlugins(plugins sets.Set[string]) { s.parallelPreBind = plugins }

// ShouldSkipAllPostFilterPlugins implements [fwk.CycleState].
func (s *State) ShouldSkipAllPostFilterPlugins() bool { return s.skipPostFilter }

// IsPodGroupSchedulingCycle implements [fwk.CycleState].
func (s *State) IsPodGroupSchedulingCycle() bool { return s.grouped }

// GetPodGroupSchedulingCycle implements [fwk.CycleState].
func (s *State) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return s.group }

// GetPlacementCycleState implements [fwk.CycleState].
func (s *State) GetPlacementCycleState() fwk.PlacementCycleState { return s.placement }
