package scheduler

import (
	"context"
	"errors"
	"time"
)

const (
	// longest is how long a node is looked for, and how long room is made for a pod without one. What pods ask for is
	// anybody's, and may be any amount of work; all others wait meanwhile.
	longest = 10 * time.Second
	// aGang is how many times as long it may be for all pods of a gang.
	aGang = 6
	// atOnce is how many bindings are written at the same time.
	atOnce = 16
)

// errTooLong is why an attempt ends that takes too long.
var errTooLong = errors.New("it takes too long to look at what the pod asks for")

// limited bounds one part of an attempt, which is so many times as long as that for one pod.
func (s *search) limited(ctx context.Context, times int) (context.Context, context.CancelFunc) {
	limit := s.limit
	if limit == 0 {
		limit = longest
	}
	return context.WithTimeoutCause(ctx, time.Duration(times)*limit, errTooLong)
}

// late says whether the time of an attempt is over, and not that of the scheduler.
func late(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTooLong) }

// half is a context whose time is over when that of another one is half over: what is found by then is to be compared.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, bounded := ctx.Deadline()
	if !bounded {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, time.Until(end)/2, errTooLong)
}

// step schedules the pod that is next; false: there will be none.
func step(ctx context.Context, s *Scheduler) bool {
	// A node that is found now would not be bound to sooner, and a pod that comes meanwhile may be of more weight.
	if s.writes.Wait(ctx) != nil {
		return false
	}
	p := s.queue.Pop()
	if p == nil {
		return false
	}
	namespace, began := p.Pod().Namespace, time.Now()
	s.attempt(ctx, p)
	s.queue.Spent(namespace, time.Since(began))
	return true
}
