// Package rotate rotates the logs of containers whose runtime does not: it moves a log that has grown too long away and
// has the runtime open a new one, as a kubelet does.
//
// A log that nobody writes costs nothing: the kernel tells of the first write after a look, once. From then on the log
// is looked at when it may have reached its size at the rate it was seen to grow.
package rotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what writes the logs.
type Runtime interface {
	ReopenContainerLog(context.Context, *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error)
}

// Config is what a [Rotator] works with.
type Config struct {
	Runtime  Runtime
	MaxSize  int64         // bytes at which a log is rotated
	MaxFiles int           // kept of a log, the one that is written included
	Period   time.Duration // the longest time between two looks at a log that is written; 0: 10 s
	Log      *slog.Logger
}

// Log is one that a running container writes.
type Log struct {
	Container string // ID
	Path      string
}

// Rotator rotates logs. Its methods can be called at any time.
type Rotator struct {
	cfg  Config
	sets chan set
}

type set struct {
	owner string
	logs  []Log
}

// New returns a Rotator that does nothing before [Rotator.Run].
func New(c Config) *Rotator {
	if c.Period <= 0 {
		c.Period = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Rotator{cfg: c, sets: make(chan set)}
}

// Set says which logs there are now of an owner, such as a pod. It waits until the Rotator takes it, or ctx ends.
func (r *Rotator) Set(ctx context.Context, owner string, logs []Log) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case r.sets <- set{owner, logs}:
		return nil
	}
}

// watched is a log that is looked after.
type watched struct {
	Log
	due    time.Time // when to look; zero: when somebody writes
	size   int64     // at the last look
	seen   time.Time // the last look
	rate   float64   // bytes a second, before it
	failed bool      // the last rotation
}

// looker is the state of one Run.
type looker struct {
	*Rotator
	writes *writes // nil: the kernel does not tell of them
	logs   map[string]map[string]*watched
}

// Run rotates logs until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	l := &looker{Rotator: r, logs: map[string]map[string]*watched{}}
	w, err := newWrites()
	if err != nil {
		r.cfg.Log.Warn("logs are looked at again and again, since the kernel does not tell who writes", "error", err)
	} else {
		defer w.close()
		l.writes = w
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if at := l.next(); !at.IsZero() {
			timer.Reset(max(time.Until(at), 0))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case s := <-r.sets:
			l.take(s)
		case one := <-l.writes.told():
			l.written(one)
		case <-due:
		}
		now := time.Now()
		for _, logs := range l.logs {
			for _, one := range logs {
				if !one.due.IsZero() && !one.due.After(now) && ctx.Err() == nil {
					l.look(ctx, one)
				}
			}
		}
	}
}

// take makes the logs of an owner be those. New ones are looked at at once: a crash may have left one in the middle of
// a rotation.
func (l *looker) take(s set) {
	had := l.logs[s.owner]
	now := map[string]*watched{}
	for _, log := range s.logs {
		one := had[log.Container]
		if one == nil || one.Path != log.Path {
			one = &watched{Log: log, due: time.Now()}
		}
		now[log.Container] = one
	}
	for id, one := range had {
		if now[id] != one {
			l.writes.forget(one)
		}
	}
	if l.logs[s.owner] = now; len(now) == 0 {
		delete(l.logs, s.owner)
	}
}

// next is when the first log is to be looked at; zero: when something happens.
func (l *looker) next() time.Time {
	var first time.Time
	for _, logs := range l.logs {
		for _, one := range logs {
			if !one.due.IsZero() && (first.IsZero() || one.due.Before(first)) {
				first = one.due
			}
		}
	}
	return first
}

// written makes a log be looked at when it may have grown to its size.
func (l *looker) written(one *watched) {
	if !one.due.IsZero() {
		return
	}
	least, most := l.cfg.Period/10, l.cfg.Period
	wait := least
	if one.rate > 0 {
		wait = most // of a log that hardly grows the quotient would be more than a duration holds
		if left := float64(l.cfg.MaxSize-one.size) / one.rate; left < most.Seconds() {
			wait = max(time.Duration(left*float64(time.Second)), least)
		}
	}
	one.due = one.seen.Add(wait)
	if soon := time.Now().Add(least); one.due.Before(soon) {
		one.due = soon
	}
}

// look rotates a log that is too long. The next write is told of from before the look on, so that none is missed.
func (l *looker) look(ctx context.Context, one *watched) {
	one.due = time.Time{}
	told := l.writes.arm(one)
	size, fresh, err := l.check(ctx, one)
	if fresh {
		told = l.writes.arm(one)
	}
	now := time.Now()
	if d := now.Sub(one.seen).Seconds(); !one.seen.IsZero() && d > 0 {
		one.rate = max(float64(size-one.size), 1) / d
	}
	if one.size, one.seen = size, now; fresh {
		one.size = 0
	}
	switch {
	case !told || err != nil:
		one.due = now.Add(l.cfg.Period)
	case fresh: // what was written before the watch has not been seen
		one.due = now.Add(l.cfg.Period / 10)
	}
	if err != nil && !one.failed && ctx.Err() == nil {
		l.cfg.Log.Warn("log is not rotated", "container", one.Container, "log", one.Path, "error", err)
	}
	one.failed = err != nil
}

// check rotates a log that is too long. It returns how long it was, and whether there is a new file now.
func (l *looker) check(ctx context.Context, one *watched) (size int64, fresh bool, err error) {
	fi, err := os.Stat(one.Path)
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody was killed after the log had been moved, or another has moved it: what is written goes to where it
		// is now.
		if err := l.reopen(ctx, one); err != nil {
			return 0, false, err
		}
		return 0, true, l.prune(one.Path)
	}
	if err != nil {
		return 0, false, fmt.Errorf("look at log: %w", err)
	}
	if fi.Size() < l.cfg.MaxSize {
		return fi.Size(), false, nil
	}
	away, err := moveAway(one.Path, time.Now())
	if err != nil {
		return fi.Size(), false, err
	}
	if err := l.reopen(ctx, one); err != nil {
		// Nothing is lost: the runtime goes on writing to the file, under whatever name. Its readers want it where it
		// was.
		backErr := unix.Renameat2(unix.AT_FDCWD, away, unix.AT_FDCWD, one.Path, unix.RENAME_NOREPLACE)
		return fi.Size(), false, errors.Join(err, backErr)
	}
	return fi.Size(), true, l.prune(one.Path)
}

func (l *looker) reopen(ctx context.Context, one *watched) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := l.cfg.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: one.Container}); err != nil {
		return fmt.Errorf("reopen log: %w", err)
	}
	return nil
}

// moveAway gives a log a name with the time in it, as a kubelet does. A second may see several: the number keeps them
// in order.
func moveAway(path string, now time.Time) (string, error) {
	name := path + now.UTC().Format(".20060102-150405")
	names, err := rotated(path)
	if err != nil {
		return "", err
	}
	// After the newest there is, since those before it may have been removed.
	seq := 0
	if n := len(names); n > 0 && strings.HasPrefix(names[n-1], name) {
		seq, _ = strconv.Atoi(strings.TrimPrefix(names[n-1][len(name):], "-"))
		seq++
	}
	for ; ; seq++ {
		to := name
		if seq > 0 {
			to = fmt.Sprintf("%s-%06d", name, seq)
		}
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
		if err == nil {
			return to, nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("move log away: %w", err)
		}
	}
}

// rotated are the files that a log was moved away to, the oldest first.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("list rotated logs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
			names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// prune removes the oldest files of a log beyond those to keep, of which the one that is written is one.
func (l *looker) prune(path string) error {
	names, err := rotated(path)
	if err != nil {
		return err
	}
	for len(names) > l.cfg.MaxFiles-1 {
		if err := os.Remove(names[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove rotated log: %w", err)
		}
		names = names[1:]
	}
	return nil
}
