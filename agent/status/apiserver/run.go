package apiserver

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const idle = time.Hour

// Run sends what there is to say until ctx ends and every call has. It runs once.
func (w *Writer) Run(ctx context.Context) {
	defer w.wait.Wait()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(w.dispatch(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.wake:
		}
	}
}

// touch has an entry looked at.
func (w *Writer) touch(e *entry) {
	e.due = time.Time{}
	w.dirty[e] = struct{}{}
	w.wake.ring()
}

func (w *Writer) touchAll() {
	for _, e := range w.pods {
		w.touch(e)
	}
	for _, e := range w.mirrors {
		w.touch(e)
	}
}

// answers takes that the source has heard from the server.
func (w *Writer) answers() {
	w.pace.hears(time.Now())
	w.wake.ring()
}

// dispatch begins the calls that it is time for, those first that have waited longest, and says how long to wait for
// the next.
func (w *Writer) dispatch(ctx context.Context) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	at := now.Add(idle)
	var ready []*entry
	for e := range w.dirty {
		if e.busy {
			continue
		}
		due := e.due
		if e.trouble.until.After(due) {
			due = e.trouble.until
		}
		if due.After(now) {
			at = earlier(at, due)
			continue
		}
		ready = append(ready, e)
	}
	slices.SortFunc(ready, func(a, b *entry) int { return a.since.Compare(b.since) })
	defer func() { w.calm.look(w.dirty, w.pace.running) }()
	for _, e := range ready {
		if !w.pace.may(now) {
			if w.pace.until.After(now) {
				at = earlier(at, w.pace.until)
			}
			break // else the end of a call wakes
		}
		if due := w.begin(ctx, e, now); due.After(now) {
			e.due = due
			at = earlier(at, due)
		}
	}
	return at.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// begin does what is next about a pod, or says when it is to be done.
func (w *Writer) begin(ctx context.Context, e *entry, now time.Time) time.Time {
	a, due := w.next(e, now)
	switch {
	case a.verb == nothing:
		e.since, e.moved = time.Time{}, nil
		delete(w.dirty, e)
		w.drop(e)
		return now
	case a.verb == waits:
		delete(w.dirty, e)
		return now
	case due.After(now):
		return due
	}
	delete(w.dirty, e)
	e.busy = true
	epoch := w.pace.begin()
	w.wait.Go(func() {
		got, err := calls{w}.do(ctx, &a)
		w.finish(ctx, e, &a, got, err, epoch)
	})
	return now
}

// drop forgets an entry that nothing can come of any more.
func (w *Writer) drop(e *entry) {
	switch {
	case e.static && e.want == nil && e.has == nil && !e.doubt:
		delete(w.mirrors, e.key)
	case !e.static && e.absent && (e.gone || e.want == nil):
		delete(w.pods, e.uid)
	}
}

// finish takes what has come of a call.
func (w *Writer) finish(ctx context.Context, e *entry, a *act, got *corev1.Pod, err error, epoch int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.busy = false
	w.pace.running--
	if ctx.Err() != nil {
		return // who was cut off knows nothing
	}
	if err != nil {
		answers{w}.failed(e, a, err, epoch)
	} else {
		w.answered()
		answers{w}.took(e, a, got)
	}
	if a.resets != w.resets {
		e.doubt = true // what was answered was said by the server as it was before
	}
	w.touch(e)
}

// answered takes that the server answers. When it did not before, those that have waited for it need not wait for
// longer, but for the few that fail while others do not.
func (w *Writer) answered() {
	if !w.pace.ok() {
		return
	}
	w.cfg.Log.Info("the API server takes statuses again")
	now := time.Now()
	for e := range w.dirty {
		if n := e.trouble.failures; n > 0 && !e.trouble.refused {
			e.trouble.until = earlier(e.trouble.until, now.Add(rand.N(time.Duration(n)*spread)))
		}
	}
}
