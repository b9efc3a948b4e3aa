package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

var errNoLeader = errors.New("etcdserver: no leader")

// leaderlessStore is storage whose watches fail at once while there is no leader.
type leaderlessStore struct {
	storage.Interface
	led   atomic.Bool
	began int
}

func (l *leaderlessStore) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	l.began++
	if !l.led.Load() {
		return nil, errNoLeader
	}
	return watch.NewFake(), nil
}

// TestRested has a cache whose watches end at once begin the next one seldom, soon again when there is a leader, and at
// once when the one before has lasted.
func TestRested(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		raw, elected := &leaderlessStore{}, make(chan struct{})
		var asked atomic.Int32
		q := &question{ask: func(ctx context.Context) {
			asked.Add(1)
			select {
			case <-ctx.Done():
			case <-elected:
			}
		}}
		r := &rested{Interface: raw, answers: q, ended: t.Context()}
		begun := time.Now()
		for time.Since(begun) < time.Minute {
			if _, err := r.Watch(t.Context(), "/x", storage.ListOptions{}); !errors.Is(err, errNoLeader) {
				t.Fatal(err)
			}
		}
		if most := int(time.Minute/leaderPatience) + 2; raw.began < 10 || raw.began > most || int(asked.Load()) > most {
			t.Errorf("in a minute without a leader %d watches began, and etcd was asked %d times", raw.began, asked.Load())
		}
		raw.led.Store(true)
		close(elected)
		begun = time.Now()
		if _, err := r.Watch(t.Context(), "/x", storage.ListOptions{}); err != nil || time.Since(begun) > longestRest {
			t.Errorf("with a leader a watch begins after %s, %v", time.Since(begun), err)
		}
		time.Sleep(calm)
		begun = time.Now()
		if _, err := r.Watch(t.Context(), "/x", storage.ListOptions{}); err != nil || time.Since(begun) > 0 {
			t.Errorf("after one that lasted a watch begins after %s, %v", time.Since(begun), err)
		}
	})
}

// TestRestedEnds has what waits for a leader end with its cache, and with it alone.
func TestRestedEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		q := &question{ask: func(ctx context.Context) { asked.Add(1); <-ctx.Done() }}
		one, end := context.WithCancel(t.Context())
		begun := time.Now()
		ended := make(chan time.Duration, 2)
		for _, ctx := range []context.Context{one, t.Context()} {
			r := &rested{Interface: &leaderlessStore{}, answers: q, ended: ctx}
			_, _ = r.Watch(t.Context(), "/x", storage.ListOptions{})
			go func() {
				_, _ = r.Watch(t.Context(), "/x", storage.ListOptions{})
				ended <- time.Since(begun)
			}()
		}
		time.Sleep(time.Second)
		end()
		first, second := <-ended, <-ended
		if first != time.Second || second < leaderPatience || asked.Load() != 1 {
			t.Errorf("they have ended after %s and %s, with %d questions", first, second, asked.Load())
		}
	})
}
