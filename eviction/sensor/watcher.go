package sensor

import (
	"context"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

const (
	// kept is how many readings of a signal are remembered: a slope needs those of a tenth of a second.
	kept = 32
	// held is how many looks in quick succession follow an event when a limit is near: as many as a slope needs. Far
	// from all limits one look is the answer: on a node that has much to do the kernel tells of stalls every second,
	// and there is another event, or an alarm, when it was the first of what ends at a limit.
	held = 8
)

// look is what a watcher found.
type look struct {
	err error // that was not there at the look before
	// crossed says that some signal is on another side of a limit than at the look before.
	crossed bool
	// tell is how long ago the last word may be for this look to be news.
	tell     time.Duration
	history  map[signal.Signal][]signal.Reading
	limits   map[signal.Signal][]int64
	exhausts time.Duration // the shortest time to any limit; never, where nothing gets less
	held     bool          // more looks follow in quick succession, until which it is not clear what happens
	near     bool          // to some limit
}

// watcher reads some signals again and again.
type watcher struct {
	read    func(context.Context) (signal.Readings, error)
	pace    func(signal.Signal) pace
	poked   chan struct{}
	glances chan struct{} // asked for: one look, and no more
	history map[signal.Signal][]signal.Reading
	below   map[signal.Signal]int // how many of its limits each signal is below
	failed  string                // the error of the last look
	hold    int                   // how many more looks follow in quick succession
	last    time.Duration         // between the last two looks
}

func newWatcher(read func(context.Context) (signal.Readings, error), p func(signal.Signal) pace) *watcher {
	return &watcher{
		read: read, pace: p, poked: make(chan struct{}, 1), glances: make(chan struct{}, 1), last: slow,
		history: map[signal.Signal][]signal.Reading{}, below: map[signal.Signal]int{},
	}
}

// run looks until ctx ends: at the pace of the signals, after each poke, and once for a glance.
func (w *watcher) run(ctx context.Context, limits func() map[signal.Signal][]int64, seen func(look)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poked:
			w.hold = held
		case <-w.glances:
		case <-timer.C:
		}
		now := limits()
		l := w.look(ctx, now)
		if ctx.Err() != nil {
			return
		}
		seen(l)
		next, fast := w.next(now)
		timer.Reset(next)
		// However many events there are, there is some rest between two looks.
		between := fast / 2
		if !l.near {
			between = max(between, min(far, next))
		}
		if !rest(ctx, between) {
			return
		}
	}
}

func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// look reads once.
func (w *watcher) look(ctx context.Context, limits map[signal.Signal][]int64) look {
	readings, err := w.read(ctx)
	l := look{history: w.history, limits: limits, exhausts: never}
	switch {
	case err == nil:
		w.failed = ""
	case err.Error() != w.failed:
		w.failed, l.err = err.Error(), err
	}
	for of, r := range readings {
		h := append(w.history[of], r)
		w.history[of] = h[max(0, len(h)-kept):]
		below := 0
		for _, limit := range limits[of] {
			if r.Available < limit {
				below++
			}
		}
		l.crossed = l.crossed || below != w.below[of]
		w.below[of] = below
		l.exhausts = min(l.exhausts, exhausts(w.history[of], limits[of]))
		l.near = l.near || w.pace(of).near(w.history[of], limits[of])
	}
	if !l.near && len(readings) > 0 {
		w.hold = 0
	}
	l.held = w.hold > 0
	l.tell = tell(l.exhausts)
	return l
}

// next is the time to the next look, and the shortest that there is.
func (w *watcher) next(limits map[signal.Signal][]int64) (next, fast time.Duration) {
	next, fast = slow, slow
	for of, h := range w.history {
		p := w.pace(of)
		fast = min(fast, p.fast)
		if len(limits[of]) > 0 {
			next = min(next, p.next(h, limits[of]))
		}
	}
	if w.hold > 0 {
		w.hold--
		next = min(next, 2*fast)
	}
	// The calm comes back by and by: it may be nothing but one reading that hides what goes on.
	next = min(next, 2*w.last)
	w.last = next
	return next, min(fast, diskPace.fast)
}
