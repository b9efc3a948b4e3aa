package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/resident"
)

const (
	// settleAfter is how long after the server has begun what only a start needs is given back. Caches are filled by
	// then.
	settleAfter = 5 * time.Second
	// settleEvery is how often the process looks whether it has next to nothing to do. The end of a burst [pace] tells;
	// of what is too little for one nothing does.
	settleEvery = 5 * time.Minute
	// settleShare is the share of a processor below which it is: in hundredths.
	settleShare = 5
)

// settle gives back memory that a start, or a burst of work, has left: what Go has freed and keeps for the next one,
// and what of the program nobody uses. It is half of a server that idles, and comes back within milliseconds where it
// is needed.
func settle(ctx context.Context, began <-chan struct{}, garbage *pace, log *slog.Logger) {
	select {
	case <-ctx.Done():
		return
	case <-began:
	}
	timer := time.NewTimer(settleAfter)
	defer timer.Stop()
	for last, first := processorTime(), true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(settleEvery)
		now := processorTime()
		garbage.started.Store(true)
		if first || idle(now-last, settleEvery) {
			giveBack(log)
		}
		last = now
	}
}

// giveBack is what of memory nobody uses now.
func giveBack(log *slog.Logger) {
	debug.FreeOSMemory()
	if err := resident.DropProgram(); err != nil {
		log.Debug("more of the program stays mapped than is used", "error", err)
	}
}

// idle says whether a process that has used a processor for so long within a while has done next to nothing.
func idle(used, within time.Duration) bool { return used*100 < within*settleShare }

// processorTime is how long processors have run this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // it cannot fail for the process itself
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
