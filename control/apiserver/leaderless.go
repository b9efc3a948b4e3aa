package apiserver

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// calm is how long a watch has to have lasted for the next one to begin at once.
	calm = 10 * time.Second
	// shortestRest and longestRest are the least time between two watches where the one before has not lasted.
	shortestRest = 50 * time.Millisecond
	longestRest  = time.Second
	// leaderPatience bounds the wait for a leader. A cache gives its watchers up when it has heard of none for half a
	// minute, which it knows by watches that fail.
	leaderPatience = 5 * time.Second
)

// rested is storage for a cache, whose watch it holds back where the one before has just ended. Without a leader etcd
// ends each at once, which a cache takes for a reason to begin the next one at once, for half a minute.
type rested struct {
	storage.Interface
	answers *question
	ended   context.Context // ends before the cache does, which waits for its watch

	mu    sync.Mutex
	began time.Time     // the watch before
	rest  time.Duration // before the next one
}

// Watch implements [storage.Interface].
func (r *rested) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if rest := r.next(time.Now()); rest > 0 {
		r.wait(rest)
	}
	r.mu.Lock()
	r.began = time.Now()
	r.mu.Unlock()
	return r.Interface.Watch(ctx, key, o)
}

// next is how long to rest before a watch.
func (r *rested) next(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() || now.Sub(r.began) >= calm {
		r.rest = 0
		return 0
	}
	r.rest = min(max(2*r.rest, shortestRest), longestRest)
	return r.rest
}

// wait rests, and then until etcd has a leader, within its patience. Where etcd has one for whom is asked and none for
// whom is watched there still is the rest.
func (r *rested) wait(rest time.Duration) {
	ctx, cancel := context.WithTimeout(r.ended, rest+leaderPatience)
	defer cancel()
	select {
	case <-ctx.Done():
		return
	case <-time.After(rest):
	}
	r.answers.wait(ctx)
}

// question is asked once for all who wait for its answer.
type question struct {
	// ask returns when etcd has answered what takes a leader, or at the end of its context.
	ask func(context.Context)

	mu      sync.Mutex
	waiting chan struct{} // closed with the answer; nil: nobody asks
}

func (q *question) wait(ctx context.Context) {
	q.mu.Lock()
	answer := q.waiting
	if answer == nil {
		answer = make(chan struct{})
		q.waiting = answer
		go q.answer(answer)
	}
	q.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-answer:
	}
}

func (q *question) answer(answer chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), leaderPatience)
	defer cancel()
	q.ask(ctx)
	q.mu.Lock()
	q.waiting = nil
	q.mu.Unlock()
	close(answer)
}
