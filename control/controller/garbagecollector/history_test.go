package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// history is a collector in a world: who has to be looked at, and in which order, is chance.
type history struct {
	w     *world
	c     *collector
	queue []types.UID
	in    map[types.UID]bool
}

func (h *history) add(uid types.UID) {
	if !h.in[uid] {
		h.in[uid] = true
		h.queue = append(h.queue, uid)
	}
}

// start is a process that knows nothing, and is told what there is.
func (h *history) start() {
	h.queue, h.in = nil, map[types.UID]bool{}
	h.w.heard = map[types.UID]uint64{}
	h.c = newCollector(newGraph(), h.w, h.add)
	h.c.atOnce = 1
	for _, i := range h.w.r.Perm(len(sorts)) {
		h.list(sorts[i])
	}
}

func (h *history) list(kind unique.Handle[schema.GroupKind]) {
	h.w.pending[kind] = nil
	var all []object
	for _, uid := range slices.Sorted(maps.Keys(h.w.objects)) {
		m := h.w.objects[uid]
		if h.w.kinds[uid] == kind {
			all = append(all, objectOf(kind, m))
			h.w.heard[uid] = all[len(all)-1].version
		}
	}
	h.c.tell(h.c.graph.replace(kind, all))
}

// hear is one event of a watch: the next, or, where chance has it, another, one twice, or one never.
func (h *history) hear(chance bool) bool {
	for _, i := range h.w.r.Perm(len(sorts)) {
		kind := sorts[i]
		all := h.w.pending[kind]
		if len(all) == 0 {
			continue
		}
		at, twice, lost := 0, false, false
		if chance {
			if h.w.r.IntN(6) == 0 {
				at = h.w.r.IntN(len(all))
			}
			twice, lost = h.w.r.IntN(10) == 0, h.w.r.IntN(20) == 0
		}
		event := all[at]
		if !twice {
			h.w.pending[kind] = append(append([]told{}, all[:at]...), all[at+1:]...)
		}
		switch {
		case lost:
		case event.gone:
			h.c.tell(h.c.graph.gone(event.o.uid))
		default:
			h.w.heard[event.o.uid] = max(h.w.heard[event.o.uid], event.o.version)
			h.c.tell(h.c.graph.observe(event.o))
		}
		return true
	}
	return false
}

// work looks at one object, and says whether there was one.
func (h *history) work() bool {
	if len(h.queue) == 0 {
		return false
	}
	slices.Sort(h.queue) // maps have no order, and a seed is to have one history
	at := h.w.r.IntN(len(h.queue))
	uid := h.queue[at]
	h.queue = append(h.queue[:at], h.queue[at+1:]...)
	delete(h.in, uid)
	_, err := h.c.sync(context.Background(), uid)
	switch {
	case errors.Is(err, errDead):
		h.w.lives = -1
		h.start()
	case err != nil:
		h.add(uid)
	}
	return true
}

// end has all that is told be heard, all kinds be listed again, and all that is to be done be done.
func (h *history) end() error {
	h.w.lives, h.w.busy = -1, false
	for range 3 {
		for _, kind := range sorts {
			h.list(kind)
		}
		for n := 0; h.hear(false) || h.work(); n++ {
			if n > 20000 {
				return fmt.Errorf("it does not come to an end: %d are to be looked at", len(h.queue))
			}
		}
	}
	return nil
}

func run(seed uint64) []string {
	w := newWorld(rand.New(rand.NewPCG(seed, 18)))
	h := &history{w: w}
	h.start()
	w.busy = true
	for range 20 + w.r.IntN(120) {
		switch n := w.r.IntN(100); {
		case n < 35:
			w.act()
		case n < 70:
			h.hear(true)
		case n < 98:
			h.work()
		case n < 99:
			w.lives = w.r.IntN(6)
		default:
			h.list(sorts[w.r.IntN(len(sorts))])
		}
	}
	if err := h.end(); err != nil {
		w.violation("%v", err)
	}
	w.settled()
	// All that the graph has then is there, or is referred to.
	for uid, n := range h.c.graph.nodes {
		if w.objects[uid] == nil && !n.virtual {
			w.violation("the graph still has %s", uid)
		}
	}
	return w.wrong
}

// TestHistories has chance write, tell, mistell and kill, and asks of each history that nothing was deleted which had
// an owner, and that in the end all is as the owners want it. BERTH_HISTORIES is how many there are.
func TestHistories(t *testing.T) {
	t.Parallel()
	count := 10000
	if text := os.Getenv("BERTH_HISTORIES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range count {
		if wrong := run(uint64(seed)); len(wrong) > 0 {
			t.Fatalf("seed %d: %v", seed, wrong)
		}
	}
}
