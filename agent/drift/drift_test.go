package drift

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestDriftPersists has what tells of changes end, by an error and by itself: it is said, all that belongs to it ends, and it is run again.
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
