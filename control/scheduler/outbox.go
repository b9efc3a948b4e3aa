package scheduler

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
)

const (
	writeTimeout = 30 * time.Second
	writeTries   = 5
)

// outbox writes what is to be told of things to the API, beside the scheduler's loop. Of several notes of one thing the
// last one counts.
type outbox[K comparable, N any] struct {
	write  func(ctx context.Context, key K, note *N) error
	failed func(note *N, err error) // of one that is tried no more
	queue  workqueue.TypedRateLimitingInterface[K]
	mu     sync.Mutex
	latest map[K]*N
}

func newOutbox[K comparable, N any](write func(context.Context, K, *N) error, failed func(*N, error)) *outbox[K, N] {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[K](50*time.Millisecond, 5*time.Second)
	return &outbox[K, N]{write: write, failed: failed, queue: workqueue.NewTypedRateLimitingQueue(limit), latest: map[K]*N{}}
}

// put has a note written that replaces the one before it, which is nil where none waits; nil: it stays as it is.
func (o *outbox[K, N]) put(key K, next func(before *N) *N) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := next(o.latest[key]); n != nil {
		o.latest[key] = n
		o.queue.Add(key)
	}
}

func (o *outbox[K, N]) run(ctx context.Context, workers int) {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for o.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	o.queue.ShutDown()
	group.Wait()
}

func (o *outbox[K, N]) next(ctx context.Context) bool {
	key, ended := o.queue.Get()
	if ended {
		return false
	}
	defer o.queue.Done(key)
	o.mu.Lock()
	n := o.latest[key]
	delete(o.latest, key)
	o.mu.Unlock()
	if n == nil || ctx.Err() != nil {
		return true
	}
	within, cancel := context.WithTimeout(ctx, writeTimeout)
	err := o.write(within, key, n)
	cancel()
	switch {
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		o.queue.Forget(key) // it is gone, or another one of its name is there
	case o.queue.NumRequeues(key) >= writeTries:
		o.failed(n, err)
		o.queue.Forget(key)
	default:
		o.mu.Lock()
		if o.latest[key] == nil {
			o.latest[key] = n
		}
		o.mu.Unlock()
		o.queue.AddRateLimited(key)
	}
	return true
}
