package audit

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// patience is how long a request waits for its event to be written.
const patience = 200 * time.Millisecond

// logBackend writes events one after the other. A request waits until its event is written, so that a killed process
// has told of what it did; but not for a disk that hangs, or a pipe that nobody reads. Kubernetes' log waits for those
// without end. As with Kubernetes, an event that cannot be written is counted and told of in the process's own log.
type logBackend struct {
	audit.Backend
	queue chan job
	held  hold
	// behind is set when somebody has waited in vain. Nobody waits until all is written.
	behind   atomic.Bool
	patience time.Duration
	last     time.Duration
	log      *slog.Logger
}

// job is an event to write. Without one, all before it has been written.
type job struct {
	event *auditapi.Event
	done  chan struct{}
}

func newLog(o Options, log *slog.Logger) (audit.Backend, error) {
	out, err := openLog(o)
	if err != nil {
		return nil, err
	}
	return newLogBackend(auditlog.NewBackend(out, o.LogFormat, auditv1.SchemeGroupVersion), patience, lastWait, log), nil
}

func newLogBackend(next audit.Backend, patience, last time.Duration, log *slog.Logger) *logBackend {
	return &logBackend{Backend: next, queue: make(chan job, mostEvents), patience: patience, last: last, log: log}
}

// Run implements [audit.Backend]. Events come after stop has been closed, too: those of watches that end then.
func (b *logBackend) Run(stop <-chan struct{}) error {
	go func() {
		for j := range b.queue {
			if j.event != nil {
				b.Backend.ProcessEvents(j.event)
				b.held.give(j.event)
			}
			close(j.done)
			if len(b.queue) == 0 && b.behind.CompareAndSwap(true, false) {
				b.log.Info("the audit log keeps up again")
			}
		}
	}()
	return b.Backend.Run(stop)
}

// ProcessEvents implements [audit.Backend]. It is true always: false would refuse the request.
func (b *logBackend) ProcessEvents(events ...*auditapi.Event) bool {
	for _, e := range events {
		if !b.held.take(e) {
			audit.HandlePluginError(auditlog.PluginName, errBehind, e)
			continue
		}
		// The caller goes on to change the event.
		j := job{e.DeepCopy(), make(chan struct{})}
		select {
		case b.queue <- j:
			b.wait(j)
		default:
			b.held.give(e)
			audit.HandlePluginError(auditlog.PluginName, errBehind, e)
		}
	}
	return true
}

func (b *logBackend) wait(j job) {
	if b.behind.Load() {
		return
	}
	late := time.NewTimer(b.patience)
	defer late.Stop()
	select {
	case <-j.done:
	case <-late.C:
		if b.behind.CompareAndSwap(false, true) {
			b.log.Warn("the audit log does not keep up: requests go on without it")
		}
	}
}

// Shutdown implements [audit.Backend].
func (b *logBackend) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), b.last)
	defer cancel()
	j := job{done: make(chan struct{})}
	select {
	case b.queue <- j:
	case <-ctx.Done():
	}
	select {
	case <-j.done:
		b.Backend.Shutdown()
	case <-ctx.Done():
		b.log.Error("audit events are lost: they were not written in time", "events", b.held.events.Load())
	}
}

// openLog opens what events are written to.
func openLog(o Options) (io.Writer, error) {
	if o.LogPath == "-" {
		// By a number other than 1, a reader that has gone is an error of writing, and not the end of the process.
		fd, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		return &lines{out: os.NewFile(uintptr(fd), "standard output")}, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.LogPath), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(o.LogPath, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	torn, err := isTorn(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	if o.LogMaxSize == 0 {
		return &lines{f, torn}, nil
	}
	f.Close()
	return &lines{&lumberjack.Logger{
		Filename: o.LogPath, MaxAge: o.LogMaxAge, MaxBackups: o.LogMaxBackups, MaxSize: o.LogMaxSize,
	}, torn}, nil
}

// isTorn tells whether a file ends within a line, as after a loss of power.
func isTorn(f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return last[0] != '\n', nil
}

// lines writes whole lines. After a line that was cut off, as by a full disk, the next begins one of its own.
type lines struct {
	out  io.Writer
	torn bool
}

// Write implements [io.Writer].
func (l *lines) Write(line []byte) (int, error) {
	if l.torn {
		if _, err := l.out.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		l.torn = false
	}
	n, err := l.out.Write(line)
	l.torn = err != nil && n > 0
	return n, err
}
