package controller

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
)

// TestLoopTurns has a namespace have a thousand keys looked at, and another one come with its first: it does not wait
// for the thousand.
func TestLoopTurns(t *testing.T) {
	const many = 1000
	ctx, cancel := context.WithCancel(t.Context())
	looks := make(chan cache.ObjectName)
	l := NewLoop(slog.New(slog.DiscardHandler), 1, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
		select {
		case looks <- key:
		case <-ctx.Done():
		}
		return 0, nil
	})
	for i := range many {
		l.Add(cache.ObjectName{Namespace: "crowd", Name: fmt.Sprint(i)})
	}
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	if first := <-looks; first.Name != "0" {
		t.Errorf("the first is %s", first)
	}
	l.Add(cache.ObjectName{Namespace: "alone", Name: "x"})
	before := 1
	for (<-looks).Namespace != "alone" {
		before++
	}
	if before > 3 {
		t.Errorf("it waits for %d keys of another namespace", before)
	}
	for i := before; i < many; i++ {
		if key := <-looks; key.Name != fmt.Sprint(i) {
			t.Fatalf("%s comes in place of %d", key, i)
		}
	}
	cancel()
	<-ended
	if q := newTurns[string](1); q.Len() != 0 {
		t.Error("it begins with keys")
	}
}

// TestTurns has keys of three namespaces come in any order: each namespace has its turn, and nothing is kept of those
// that have no keys left.
func TestTurns(t *testing.T) {
	q := newTurns[cache.ObjectName](100)
	for _, k := range []string{"a/1", "a/2", "b/1", "a/3", "c/1", "b/2"} {
		q.Push(cache.ObjectName{Namespace: k[:1], Name: k[2:]})
	}
	var got string
	for q.Len() > 0 {
		got += q.Pop().String() + " "
	}
	if want := "a/1 b/1 c/1 a/2 b/2 a/3 "; got != want || len(q.keys) != 0 || len(q.next) != 0 {
		t.Errorf("they come as %swith %v left", got, q.keys)
	}
}

// TestLoopLastWorker has a namespace have objects that take for ever to look at: others are looked at meanwhile, and
// those of the namespace are when the first have been.
func TestLoopLastWorker(t *testing.T) {
	const workers, many = 5, 20
	ctx, cancel := context.WithCancel(t.Context())
	began, release, alone := make(chan string, many), make(chan struct{}), make(chan string)
	l := NewLoop(slog.New(slog.DiscardHandler), workers, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
		to, wait := began, release
		if key.Namespace == "alone" {
			to, wait = alone, nil
		}
		select {
		case to <- key.Name:
		case <-ctx.Done():
		}
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
			}
		}
		return 0, nil
	})
	for i := range many {
		l.Add(cache.ObjectName{Namespace: "slow", Name: fmt.Sprint(i)})
	}
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	for range workers - 1 {
		<-began
	}
	for i := range 10 {
		l.Add(cache.ObjectName{Namespace: "alone", Name: fmt.Sprint(i)})
		if name := <-alone; name != fmt.Sprint(i) {
			t.Errorf("%s comes in place of %d", name, i)
		}
	}
	select {
	case name := <-began:
		t.Errorf("%s has the last worker", name)
	default:
	}
	for range many - (workers - 1) {
		release <- struct{}{}
		<-began
	}
	cancel()
	<-ended
	if len(l.turns.looked) != 0 || len(l.turns.keys) != 0 || len(l.turns.of) != 0 {
		t.Errorf("left are %v, %v and %v", l.turns.looked, l.turns.keys, l.turns.of)
	}
}
