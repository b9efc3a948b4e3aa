package pod

import (
	"sync"

	"github.com/berth-node/berth/agent/pod/admission"
)

// tally is what the pods that use resources have together. It is kept as they come, end and go: worked out anew for
// each pod that comes, it would take longer the more of them are here.
type tally struct {
	// The manager's.
	sum admission.Sum
	of  map[*worker]bool // all workers, and whether they are in the sum

	mu   sync.Mutex
	told map[*worker]bool // whether pods are over, as their workers have said since the sum was brought up to date
}

func newTally() *tally { return &tally{of: map[*worker]bool{}, told: map[*worker]bool{}} }

// tell takes note of whether a pod is over. It is for workers, and waits for nobody.
func (t *tally) tell(w *worker, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told[w] = over
}

// refresh brings the sum up to date with what workers have said.
func (t *tally) refresh() {
	t.mu.Lock()
	if len(t.told) == 0 {
		t.mu.Unlock()
		return
	}
	told := t.told
	t.told = map[*worker]bool{}
	t.mu.Unlock()
	for w, over := range told {
		if _, here := t.of[w]; here {
			t.put(w, !over)
		}
	}
}

// put has a worker's pod be in the sum, or not.
func (t *tally) put(w *worker, counts bool) {
	switch before := t.of[w]; {
	case counts && !before:
		t.sum.Add(w.share)
	case !counts && before:
		t.sum.Sub(w.share)
	}
	t.of[w] = counts
}

// forget drops a worker that has ended.
func (t *tally) forget(w *worker) {
	t.put(w, false)
	delete(t.of, w)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.told, w)
}
