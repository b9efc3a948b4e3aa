package drift

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestDriftPersists has what tells of changes end, by an error and by itself: it is said, all that belongs to it ends,
// and it is run again.
func TestDriftPersists(t *testing.T) {
	var said bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	var runs, ended atomic.Int32
	persist(ctx, time.Nanosecond, slog.New(slog.NewTextHandler(&said, nil)), "nothing is seen", func(ctx context.Context) error {
		n := runs.Add(1)
		return together(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			ended.Add(1)
			return ctx.Err()
		}, func(ctx context.Context) error {
			switch n {
			case 1:
				return errors.New("inotify is torn")
			case 2:
				return nil
			}
			cancel()
			<-ctx.Done()
			return nil
		})
	})
	if runs.Load() != 3 || ended.Load() != 3 {
		t.Errorf("%d runs, %d ended", runs.Load(), ended.Load())
	}
	for _, want := range []string{"nothing is seen", "inotify is torn", "ended by itself"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in %s", want, said.String())
		}
	}
	if strings.Count(said.String(), "\n") != 2 {
		t.Errorf("the end of the agent is told of, too: %s", said.String())
	}
}

// TestLastingCause has the kernel refuse what is asked of it for a day: that is told once, and asked more and more
// seldom. What has worked for a while and fails again is told again.
func TestLastingCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		var said bytes.Buffer
		runs := 0
		log := slog.New(slog.NewTextHandler(&said, nil))
		persist(ctx, again, log, "nothing is seen", func(context.Context) error {
			if runs++; runs == 10 {
				time.Sleep(time.Hour)
			}
			return errors.New("no instance of inotify is left")
		})
		if lines := strings.Count(said.String(), "\n"); lines != 2 {
			t.Errorf("told %d times, not twice: %s", lines, said.String())
		}
		if runs > 60 {
			t.Errorf("tried %d times in a day", runs)
		}
	})
}
