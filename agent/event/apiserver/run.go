package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	timeout    = 10 * time.Second // of each call
	firstDelay = 500 * time.Millisecond
	mostDelay  = 10 * time.Second
	mostRetry  = 5 * time.Minute // whatever the server asks for
	// mostYield is for how long an event gives way: while many pods start at once, their events are more requests than
	// their statuses, and nobody waits for them.
	mostYield = 5 * time.Second
	// mostTries is for an event of which the server says that it cannot store it: that may be of this one alone.
	mostTries = 12
)

// Run sends events, one after the other, until ctx ends. It runs once.
func (s *Sink) Run(ctx context.Context) {
	wait := func(context.Context) error { return nil }
	if s.cfg.QPS > 0 {
		limit := flowcontrol.NewTokenBucketRateLimiter(float32(s.cfg.QPS), max(s.cfg.Burst, 1))
		defer limit.Stop()
		wait = limit.Wait
	}
	for s.turn(ctx) {
		if wait(ctx) != nil || !s.deliver(ctx, s.next()) {
			return
		}
	}
}

// turn waits until there is an event to send, and until it is its turn. It says whether to go on.
func (s *Sink) turn(ctx context.Context) bool {
	for ctx.Err() == nil {
		var calm <-chan struct{}
		var late <-chan time.Time
		d, waits := s.yields()
		switch {
		case waits && d <= 0:
			return true
		case waits:
			calm, late = s.cfg.Calm(), time.After(d)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-calm:
			return true
		case <-late:
			return true
		}
	}
	return false
}

// deliver sends one event, and tries again while the server does not answer. It says whether to go on.
func (s *Sink) deliver(ctx context.Context, m *message) bool {
	asked := 0
	for tries := 1; ; tries++ {
		err := s.send(ctx, m)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			s.sent.Add(1)
			if tries > 1 {
				s.cfg.Log.Info("the API server takes events again", "waiting", s.Pending())
			}
			return true
		case refused(err), apierrors.IsInternalError(err) && asked >= mostTries:
			s.refused.Add(1)
			// A namespace that ends takes no more events, and its pods have many.
			if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.IsNotFound(err) {
				s.cfg.Log.Warn("an event is not at the API server", "event", m.key.String(), "reason", m.event.Reason, "error", err)
			}
			return true
		case apierrors.IsInternalError(err):
			asked++
		}
		if tries == 1 {
			s.cfg.Log.Warn("the API server takes no events: the latest are kept, and sent when it does", "error", err)
		}
		after, _ := apierrors.SuggestsClientDelay(err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(max(delay(tries), min(time.Duration(after)*time.Second, mostRetry))):
		}
	}
}

// send makes the event at the server, or changes it there: one that the server has dropped meanwhile is made again.
func (s *Sink) send(ctx context.Context, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	events := corev1.SchemeGroupVersion.WithResource("events")
	var got corev1.Event
	if m.patch != nil {
		err := s.cfg.Client.Patch(ctx, events, m.key, types.StrategicMergePatchType, m.patch, &got)
		if !apierrors.IsNotFound(err) {
			return wrap(m, err)
		}
	}
	e := *m.event
	e.ResourceVersion = ""
	err := s.cfg.Client.Create(ctx, events, &e, &got)
	if apierrors.IsAlreadyExists(err) {
		return nil // an answer was lost: it is there
	}
	return wrap(m, err)
}

func wrap(m *message, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write event %s: %w", m.key, err)
}

// refused says whether the server would refuse the event again.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case 401, 408, 429:
		return false // it may take it later
	default:
		return code >= 400 && code < 500
	}
}

// delay is how long to wait after so many tries, which differs from one agent to the next.
func delay(tries int) time.Duration {
	d := mostDelay
	if n := tries - 1; n < 20 {
		d = min(firstDelay<<n, mostDelay)
	}
	return d/2 + rand.N(d)
}
