package profile

import (
	"context"
	"fmt"
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
	var first atomic.Pointer[string]
	guarded := func() {
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("%v, in a part of the work:\n%s", p, debug.Stack())
				first.CompareAndSwap(nil, &text)
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
	if text := first.Load(); text != nil {
		panic(*text) //nolint:forbidigo // it is one already, of who is called here
	}
}
