package profile

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/util/workqueue"
)

// few is how many pieces are not worth a second goroutine.
const few = 16

// parallelizer does pieces of work side by side, on no more goroutines than there are processors: more would only take
// turns.
type parallelizer struct{ most int }

// Until implements [fwk.Parallelizer].
func (p parallelizer) Until(ctx context.Context, pieces int, work workqueue.DoWorkPieceFunc, _ string) {
	workers := min(p.most, runtime.GOMAXPROCS(0), pieces)
	if pieces <= few || workers <= 1 {
		for i := 0; i < pieces && ctx.Err() == nil; i++ {
			work(i)
		}
		return
	}
	chunk := int64(max(1, pieces/(workers*8)))
	var next atomic.Int64
	part := func() {
		for ctx.Err() == nil {
			end := next.Add(chunk)
			if end-chunk >= int64(pieces) {
				return
			}
			for i := end - chunk; i < min(end, int64(pieces)) && ctx.Err() == nil; i++ {
				work(int(i))
			}
		}
	}
	var first atomic.Pointer[partPanic]
	guarded := func() {
		defer func() {
			if p := recover(); p != nil {
				first.CompareAndSwap(nil, &partPanic{p, string(debug.Stack())})
			}
		}()
		part()
	}
	var group sync.WaitGroup
	for range workers - 1 {
		group.Go(guarded)
	}
	guarded()
	group.Wait()
	// Whose work it is may recover from it; nobody could in the goroutines.
	if is := first.Load(); is != nil {
		panic(is) //nolint:forbidigo // it is one already, of who is called here
	}
}

// partPanic is a panic of another goroutine. Where it was is for the log alone: what is said of a pod others read, too.
type partPanic struct {
	value any
	stack string
}

// Error implements error.
func (p *partPanic) Error() string { return fmt.Sprint(p.value) }

// LogValue implements [slog.LogValuer].
func (p *partPanic) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("%v, in a part of the work:\n%s", p.value, p.stack))
}
