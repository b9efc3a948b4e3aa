// Package turns shares a time among several things of which nobody knows how long each takes, as counting somebody's
// files: one that would take all of it takes none of the others'.
package turns

import (
	"context"
	"sync"
	"time"
)

// Config says how a time is shared.
type Config struct {
	// AtOnce is how many are done at the same time, 1 at least.
	AtOnce int
	// First is the time that each has at first. Those that it was not enough for have twice as long next, and so on, as
	// long as the context has time for that.
	First time.Duration
}

// Do calls do for each of so many things, until that says that it has come to its end, or until the context has ended.
// What has not come to its end in its turn, at which its context ends, begins anew in the next, after all others: so
// each has about as much time as every other one that needs as much, and half of it at least in one piece. Where there
// is no time for one turn each, turns are shorter.
func Do(ctx context.Context, things int, c Config, do func(ctx context.Context, i int) (ended bool)) {
	left := make([]int, things)
	for i := range left {
		left[i] = i
	}
	had := time.Duration(0)
	for turn := c.First; len(left) > 0 && ctx.Err() == nil; turn *= 2 {
		if deadline, ok := ctx.Deadline(); ok {
			batches := (len(left) + c.AtOnce - 1) / c.AtOnce
			if each := time.Until(deadline) / time.Duration(batches); each < turn {
				turn = each // it is the last
			}
		}
		if turn <= had {
			return // nobody would come further than he has
		}
		left, had = round(ctx, left, c.AtOnce, turn, do), turn
	}
}

// round gives each a turn, and returns those that need another one.
func round(
	ctx context.Context, things []int, atOnce int, turn time.Duration, do func(ctx context.Context, i int) bool,
) []int {
	ended := make([]bool, len(things))
	var next int
	var mu sync.Mutex
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	var wait sync.WaitGroup
	for range min(atOnce, len(things)) {
		wait.Go(func() {
			for at := take(); at < len(things) && ctx.Err() == nil; at = take() {
				mine, cancel := context.WithTimeout(ctx, turn)
				ended[at] = do(mine, things[at])
				cancel()
			}
		})
	}
	wait.Wait()
	var left []int
	for at, i := range things {
		if !ended[at] {
			left = append(left, i)
		}
	}
	return left
}

// Among splits what is left of a context's time among several things that are done one after the other: each has an
// equal part of it, and what those before it have not used. Those that it was not enough for begin anew when all others
// have had theirs, where twice as much is left for them. It says whether all have come to their end.
func Among(ctx context.Context, things int, do func(ctx context.Context, i int)) (enough bool) {
	left, had := make([]int, things), make([]time.Duration, things)
	for i := range left {
		left[i] = i
	}
	for {
		var again []int
		done := false
		for at, i := range left {
			mine, cancel := ctx, context.CancelFunc(func() {})
			if deadline, ok := ctx.Deadline(); ok {
				part := time.Until(deadline) / time.Duration(len(left)-at)
				if had[i] > 0 && part < 2*had[i] {
					again = append(again, i)
					continue
				}
				had[i] = max(part, 1)
				mine, cancel = context.WithTimeout(ctx, part)
			}
			do(mine, i)
			if done = true; mine.Err() != nil {
				again = append(again, i)
			}
			cancel()
		}
		if left = again; !done || len(left) == 0 || ctx.Err() != nil {
			return len(left) == 0
		}
	}
}
