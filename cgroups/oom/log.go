// Package oom has what the kernel tells of kills for want of memory: its log read as it is written, what the files of
// groups say beside it, and reports of both that are kept.
package oom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LogPath is where the kernel's log is read as records.
const LogPath = "/dev/kmsg"

// Log reads the kernel's log. It is the whole machine's: who reads it picks out what is theirs.
type Log struct {
	f      *os.File
	parser parser
	buf    []byte
	lost   bool
}

// OpenLog opens the log at its beginning, or at its end with what comes from now on. Reading it takes CAP_SYSLOG on
// most machines.
func OpenLog(path string, fromNow bool) (*Log, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if fromNow {
		if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
			unix.Close(fd)
			return nil, &os.PathError{Op: "seek", Path: path, Err: err}
		}
	}
	// A descriptor that does not block is waited for by the runtime's poller.
	return &Log{f: os.NewFile(uintptr(fd), path), parser: newParser(bootTime()), buf: make([]byte, maxRecord)}, nil
}

// maxRecord is more than the kernel's longest record: CONSOLE_EXT_LOG_MAX is 8 KiB.
const maxRecord = 16 << 10

// bootTime is when the clock of the log's timestamps was 0. It stands while the machine sleeps, so that kills before
// that are told later than they were.
func bootTime() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// BootID tells one start of the machine from the next; "" where the kernel does not say.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Close ends a read that waits.
func (l *Log) Close() error { return l.f.Close() }

// Lost says whether records were overwritten before they were read.
func (l *Log) Lost() bool { return l.lost }

// Kills are those in the log up to now. Nothing is waited for.
func (l *Log) Kills(ctx context.Context) ([]Kill, error) {
	var out []Kill
	for ctx.Err() == nil {
		if err := l.f.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			return out, fmt.Errorf("read kernel log: %w", err)
		}
		// Past the deadline the runtime would not even ask, so the descriptor is asked directly.
		n, err := l.readNow()
		switch {
		case errors.Is(err, unix.EAGAIN) || err == nil && n == 0:
			return out, nil
		case errors.Is(err, unix.EPIPE): // the writer has come round: what was next is gone
			l.lost = true
			l.parser.reset()
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return out, fmt.Errorf("read kernel log: %w", err)
		}
		if k, ok := l.parser.record(l.buf[:n]); ok {
			out = append(out, k)
		}
	}
	return out, ctx.Err()
}

func (l *Log) readNow() (n int, err error) {
	c, err := l.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := c.Control(func(fd uintptr) { n, err = unix.Read(int(fd), l.buf) })
	return n, errors.Join(cerr, err)
}

// Follow calls fn with each kill until ctx ends.
func (l *Log) Follow(ctx context.Context, fn func(Kill)) error {
	if err := l.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.f.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		n, err := l.f.Read(l.buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EPIPE):
			l.lost = true
			l.parser.reset()
			continue
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		}
		if k, ok := l.parser.record(l.buf[:n]); ok {
			fn(k)
		}
	}
}
