package controller

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"
)

func TestEnabled(t *testing.T) {
	for _, c := range []struct {
		list      string
		byDefault bool
		want      bool
	}{
		{"*", true, true},
		{"*", false, false},
		{"*,a", false, true},
		{"*,-a", true, false},
		{"-a,a", true, false},
		{"a", false, true},
		{"b", true, false},
		{"", true, false},
	} {
		if got := Enabled("a", c.byDefault, strings.Split(c.list, ",")); got != c.want {
			t.Errorf("with %q it is %v", c.list, got)
		}
	}
	if CheckList([]string{"*", "-a", "b"}, []string{"a", "b"}) != nil || CheckList([]string{"aa"}, []string{"a"}) == nil {
		t.Error("the list is not checked")
	}
}

// TestLoop has keys fail twice, and one be due later: each is brought where it should be, and everything ends with the
// context.
func TestLoop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan string, 10)
	tries := map[string]int{}
	l := NewLoop(slog.New(slog.DiscardHandler), 1, func(_ context.Context, key string) (time.Duration, error) {
		if tries[key]++; tries[key] < 3 {
			if key == "later" {
				return time.Millisecond, nil
			}
			return 0, errors.New("not yet")
		}
		done <- key
		return 0, nil
	}).Start("fails", "later")
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	got := map[string]bool{<-done: true, <-done: true}
	if !got["fails"] || !got["later"] {
		t.Errorf("done are %v", got)
	}
	cancel()
	<-ended
}

// TestLoopPanics has what panics cost its own key, and be tried again: other keys are looked at by the same worker.
func TestLoopPanics(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done, again := make(chan string, 10), make(chan string, 10)
	l := NewLoop(slog.New(slog.DiscardHandler), 1, func(_ context.Context, key string) (time.Duration, error) {
		if key == "bad" {
			again <- key
			panic(key)
		}
		done <- key
		return 0, nil
	}).Start("bad", "good")
	hears := l.handler(watch[string]{changed: func(_, after any) []string { return []string{after.(string)} }})
	hears.OnAdd(1, false) // panics
	hears.OnAdd("heard", false)
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	got := map[string]bool{<-done: true, <-done: true}
	if !got["good"] || !got["heard"] {
		t.Errorf("done are %v", got)
	}
	<-again
	<-again
	cancel()
	<-ended
}

// TestSafely has errors be what they are, and panics be errors that know where they were.
func TestSafely(t *testing.T) {
	plain := errors.New("plain")
	if err := Safely(func() error { return plain }); !errors.Is(err, plain) || stackOf(err) != "" {
		t.Errorf("an error is %v", err)
	}
	err := Safely(func() error { panic("no") })
	if err == nil || !strings.Contains(err.Error(), "panic: no") || !strings.Contains(stackOf(errors.Join(err)), "TestSafely") {
		t.Errorf("a panic is %v", err)
	}
}

// TestSeconds has no number of seconds come round to another sign.
func TestSeconds(t *testing.T) {
	if Seconds(90) != 90*time.Second || Seconds(math.MaxInt64) < 24*time.Hour || Seconds(math.MinInt64) > -24*time.Hour || Seconds(math.MaxInt64/1_000_000_000+1) < 0 {
		t.Errorf("%s, %s, %s", Seconds(90), Seconds(math.MaxInt64), Seconds(math.MinInt64))
	}
}
