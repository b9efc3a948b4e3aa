package main

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"
)

// What the libraries say over and over is bounded: of what is word by word the same so often in a while, and then one
// of so many. Each watch that is begun again, for as long as there is no etcd, says so.
const (
	sameFor              = time.Minute
	firstSame, laterSame = 10, 1000
	maxSame              = 4096 // of different ones that are counted
)

// quiet has what the libraries tell of their work told only to who looks for a fault in it.
type quiet struct {
	slog.Handler
	said *said
}

func newQuiet(h slog.Handler) quiet {
	return quiet{h, &said{times: map[uint64]int{}, seed: maphash.MakeSeed()}}
}

// said counts what was said since a time.
type said struct {
	mu    sync.Mutex
	since time.Time
	times map[uint64]int
	seed  maphash.Seed
}

// Enabled implements [slog.Handler].
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return q.Handler.Enabled(ctx, l) && (l >= slog.LevelWarn || q.Handler.Enabled(ctx, slog.LevelDebug))
}

// Handle implements [slog.Handler].
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	n := q.said.count(r)
	if n > firstSame && n%laterSame != 0 {
		return nil
	}
	if n > firstSame {
		r.AddAttrs(slog.Int("times", n))
	}
	return q.Handler.Handle(ctx, r)
}

// count says how often something was said, with this time.
func (s *said) count(r slog.Record) int {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		_, _ = h.WriteString("\x00" + a.Key + "\x00" + a.Value.String())
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Time.Sub(s.since) >= sameFor || len(s.times) >= maxSame {
		clear(s.times)
		s.since = r.Time
	}
	s.times[h.Sum64()]++
	return s.times[h.Sum64()]
}

// WithAttrs implements [slog.Handler].
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quiet{q.Handler.WithAttrs(attrs), q.said}
}

// WithGroup implements [slog.Handler].
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name), q.said} }
