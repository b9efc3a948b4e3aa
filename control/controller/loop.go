package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// firstAgain and lastAgain are how soon what has failed is tried again, at first and at most.
	firstAgain = 50 * time.Millisecond
	lastAgain  = 5 * time.Minute
	// loudAfter is how often a try fails before it is worth a warning: another writer came between, or a cache is late.
	loudAfter = 3
)

// Sync brings what a key names to where it should be, whatever it is now and however often it is called. It says when
// the passing of time alone is a reason to look again; zero: never. What has failed is tried again, each time later.
type Sync[K comparable] func(ctx context.Context, key K) (time.Duration, error)

// Loop is a controller that hears of changes by watches, each of which leads to keys, and calls Sync for each key, for
// one key never twice at a time.
type Loop[K comparable] struct {
	log     *slog.Logger
	sync    Sync[K]
	workers int
	queue   workqueue.TypedRateLimitingInterface[K]
	turns   *turns[K]
	pace    *pace[K]
	watches []watch[K]
	own     []cache.SharedIndexInformer
	first   []K
}

type watch[K comparable] struct {
	informer cache.SharedIndexInformer
	changed  func(before, after any) []K
	paced    bool
}

// NewLoop makes a loop with so many workers.
func NewLoop[K comparable](log *slog.Logger, workers int, sync Sync[K]) *Loop[K] {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstAgain, lastAgain)
	turns := newTurns[K](workers)
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limit, workqueue.TypedRateLimitingQueueConfig[K]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Queue: turns}),
		}),
	})
	return &Loop[K]{log: log, sync: sync, workers: workers, queue: queue, turns: turns, pace: newPace(func(key K) string { return turns.space(key) })}
}

// Of says in which namespace a key is, where it does not say so itself. It is called before the loop begins, and what
// it is given is called under the lock of the queue.
func (l *Loop[K]) Of(namespace func(K) string) *Loop[K] {
	l.turns.space = namespace
	return l
}

// Watch has changes of an informer's objects lead to keys. Somebody else runs the informer.
func (l *Loop[K]) Watch(informer cache.SharedIndexInformer, keys func(any) []K) *Loop[K] {
	return l.WatchChanges(informer, func(before, after any) []K {
		// What an object referred to before may need a look, too.
		var all []K
		for _, o := range []any{before, after} {
			if o != nil {
				all = append(all, keys(o)...)
			}
		}
		return all
	})
}

// WatchChanges is Watch for who has to know what has changed: before is nil of an object that is new, after of one that
// is gone.
func (l *Loop[K]) WatchChanges(informer cache.SharedIndexInformer, changed func(before, after any) []K) *Loop[K] {
	l.watches = append(l.watches, watch[K]{informer: informer, changed: changed})
	return l
}

// WatchPaced is WatchChanges for objects each change of which may lead to thousands of keys: the first of them are
// looked at as soon as it is their turn, the others of a namespace so many a second at most.
func (l *Loop[K]) WatchPaced(informer cache.SharedIndexInformer, changed func(before, after any) []K) *Loop[K] {
	l.watches = append(l.watches, watch[K]{informer: informer, changed: changed, paced: true})
	return l
}

// WatchOwn is Watch with an informer that runs as long as the loop does.
func (l *Loop[K]) WatchOwn(informer cache.SharedIndexInformer, keys func(any) []K) *Loop[K] {
	l.own = append(l.own, informer)
	return l.Watch(informer, keys)
}

// Start has keys looked at when the loop begins, whatever there is.
func (l *Loop[K]) Start(keys ...K) *Loop[K] {
	l.first = append(l.first, keys...)
	return l
}

// Add has a key looked at.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter has a key looked at when some time has passed.
func (l *Loop[K]) AddAfter(key K, d time.Duration) { l.queue.AddAfter(key, d) }

// Run implements [Controller].
func (l *Loop[K]) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	defer l.queue.ShutDown()
	for _, informer := range l.own {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, w := range l.watches {
		registration, err := w.informer.AddEventHandlerWithResyncPeriod(l.handler(w), 0)
		if err != nil {
			l.log.Error("controller does not run", "error", err)
			return
		}
		defer func() {
			if err := w.informer.RemoveEventHandler(registration); err != nil {
				l.log.Warn("watch is not given back", "error", err)
			}
		}()
		// What is not in the cache yet would be taken for something that is not there.
		if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return
		}
	}
	for _, key := range l.first {
		l.queue.Add(key)
	}
	var workers sync.WaitGroup
	for range l.workers {
		workers.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	workers.Wait()
}

func (l *Loop[K]) handler(w watch[K]) cache.ResourceEventHandler {
	look := func(before, after any) {
		err := Safely(func() error {
			for i, key := range w.changed(before, after) {
				if !w.paced || i < atOnce {
					l.queue.Add(key)
				} else if d, is := l.pace.after(key); is {
					l.queue.AddAfter(key, d)
				}
			}
			return nil
		})
		if err != nil {
			l.log.Error("change of an object is not looked at", "error", err, "stack", stackOf(err))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { look(nil, o) },
		UpdateFunc: look,
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			look(o, nil)
		},
	}
}

// next does what is next in the queue. It returns false when the queue has ended.
func (l *Loop[K]) next(ctx context.Context) bool {
	key, ended := l.queue.Get()
	if ended {
		return false
	}
	defer l.queue.Done(key)
	defer l.turns.done(key)
	if ctx.Err() != nil {
		return true // the queue hands out what it has before it ends
	}
	l.pace.looked(key)
	var again time.Duration
	err := Safely(func() (err error) {
		again, err = l.sync(ctx, key)
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil:
		l.failed(key, err)
	default:
		l.queue.Forget(key)
		if again > 0 {
			l.queue.AddAfter(key, again)
		}
	}
	return true
}

func (l *Loop[K]) failed(key K, err error) {
	level := slog.LevelWarn
	if l.queue.NumRequeues(key) < loudAfter && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, ErrWait)) {
		level = slog.LevelDebug
	}
	if stack := stackOf(err); stack != "" {
		l.log.Error("controller panics", "key", key, "error", err, "stack", stack)
	} else {
		l.log.Log(context.Background(), level, "controller tries again", "key", key, "error", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		l.queue.AddAfter(key, time.Duration(seconds)*time.Second)
		return
	}
	l.queue.AddRateLimited(key)
}

// ErrWait is in the chain of errors that say that something else has to happen first.
var ErrWait = errors.New("it is not yet time")
