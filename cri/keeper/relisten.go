package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// relistens is how long a live keeper without its socket is waited for. One of an older version never listens again,
// and one that is frozen not now.
const relistens = 2 * time.Second

// relisten has a keeper whose socket is gone, but which lives, listen again, and connects. The keeper does so at
// SIGHUP; one of an older version has that signal blocked, and stays as it is. ErrGone: it does not live.
func relisten(ctx context.Context, dir string, connect func() (*net.UnixConn, error)) (*net.UnixConn, error) {
	ident, err := findIdentity(ctx, dir)
	if err != nil {
		return nil, err
	}
	pidfd, err := ident.open()
	if err != nil {
		return nil, err
	}
	defer pidfd.Close()
	process, err := rawFd(pidfd)
	if err != nil {
		return nil, err
	}
	// The directory tells when the socket is there. It is listened to before the signal, and the socket is looked for
	// after it.
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create inotify instance: %w", err)
	}
	defer unix.Close(events)
	if _, err := unix.InotifyAddWatch(events, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if err := signalPidfd(pidfd, unix.SIGHUP); err != nil {
		return nil, err
	}
	until := time.Now().Add(relistens)
	for {
		// It is bound a moment before it listens.
		c, err := connect()
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			return c, err
		}
		left := min(time.Until(until), 100*time.Millisecond)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if left <= 0 {
			return nil, fmt.Errorf("connect to %s: the keeper (process %d) lives, but does not listen: %w", filepath.Join(dir, "keeper.sock"), ident.pid, err)
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			left = min(left, time.Millisecond)
		}
		polled := []unix.PollFd{{Fd: int32(events), Events: unix.POLLIN}, {Fd: int32(process), Events: unix.POLLIN}}
		if _, err := unix.Poll(polled, int(left.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for the keeper's socket: %w", err)
		}
		if polled[1].Revents != 0 {
			return nil, ErrGone
		}
		var drained [4096]byte
		_, _ = unix.Read(events, drained[:])
	}
}
