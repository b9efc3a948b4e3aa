// Package socket makes sockets for root only, and keeps them where clients look for them: one that somebody deletes or
// replaces is made again, since without it nobody reaches who serves it.
package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// What cannot be made is tried again after a while that grows between these.
const (
	shortest = 100 * time.Millisecond
	longest  = 30 * time.Second
)

// backing is how often it is looked for a socket of which nothing was heard: events can be lost with a directory that
// is moved and made again while it is begun to be watched.
const backing = 5 * time.Second

// Keep has the socket at path be there again whenever it is missed, until ctx ends: again makes it. own is the one that
// is there, and again returns the next: looked at before it has the name, since somebody may have replaced it after.
// What fails is tried again, sooner if the path changes. It returns at once when it cannot watch that.
func Keep(ctx context.Context, path string, own os.FileInfo, log *slog.Logger, again func() (os.FileInfo, error)) error {
	heard, err := watch(path)
	if err != nil {
		return fmt.Errorf("watch socket %s: %w", path, err)
	}
	defer func() { heard.close() }()
	var wait time.Duration // 0: nothing has failed
	moved := false         // the directory was, or was removed
	for {
		var failed error
		if moved {
			// By another watcher: of a directory that goes the kernel tells more than once, and what it tells late the
			// one before would take for the end of the watch on the next directory.
			var next *changes
			if next, failed = watch(path); failed == nil {
				heard.close()
				heard, moved = next, false
			}
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(own, now) {
			if next, err := again(); err == nil {
				log.Warn("socket was removed by somebody and is made again", "socket", path)
				own = next
			} else {
				failed = err
				if wait == 0 && ctx.Err() == nil {
					log.Error("socket was removed by somebody and cannot be made again, it is tried further",
						"socket", path, "error", err)
				}
			}
		}
		if wait = min(max(2*wait, shortest), longest); failed == nil {
			wait = 0
		}
		gone, ok := awaitChange(ctx, heard, path, wait)
		if !ok {
			return nil
		}
		moved = moved || gone
	}
}

// awaitChange waits until something may have become of the path, or its directory, or the time is over. moved says that
// it is the directory, or may be. ok is false when ctx has ended.
func awaitChange(ctx context.Context, heard *changes, path string, wait time.Duration) (moved, ok bool) {
	quiet := wait == 0
	if quiet {
		wait = backing
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-late.C:
		return quiet && !there(path), true
	case c := <-heard.events:
		return c.moved, true
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// listener is what clients reach by one path, by whichever socket is there.
type listener struct {
	listen func(ctx context.Context) (Made, error)
	path   string
	conns  chan accepted
	end    context.CancelFunc
	ended  <-chan struct{}
	wait   sync.WaitGroup

	mu      sync.Mutex
	current net.Listener
}

type accepted struct {
	conn net.Conn
	err  error
}

// Made is a socket as [Listen] is given it: File is what it was before it had its name.
type Made struct {
	Listener net.Listener
	File     os.FileInfo
}

// Listen listens at path, which listen does and is called again for when the socket is missed. What was accepted before
// goes on. The listener that listen returns leaves the path alone when it is closed, once there is another. The context
// that listen gets ends when the whole is closed, which waits for it.
func Listen(path string, log *slog.Logger, listen func(ctx context.Context) (Made, error)) (net.Listener, error) {
	ctx, end := context.WithCancel(context.Background())
	first, err := listen(ctx)
	if err != nil {
		end()
		return nil, err
	}
	l := &listener{listen: listen, path: path, conns: make(chan accepted), end: end, ended: ctx.Done(), current: first.Listener}
	l.wait.Go(func() { l.accept(first.Listener) })
	l.wait.Go(func() {
		if err := Keep(ctx, path, first.File, log, func() (os.FileInfo, error) { return l.again(ctx) }); err != nil {
			log.Warn("a socket that somebody removes is made again at the next start only", "socket", path, "error", err)
		}
	})
	return l, nil
}

// again makes the next socket, without the lock: that may take a while, and Close has to come in between.
func (l *listener) again(ctx context.Context) (os.FileInfo, error) {
	if ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	next, err := l.listen(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil, errors.Join(net.ErrClosed, next.Listener.Close())
	}
	old := l.current
	l.current = next.Listener
	l.wait.Go(func() { l.accept(next.Listener) })
	return next.File, ignoreClosed(old.Close())
}

// accept hands on what one socket accepts, until it is closed.
func (l *listener) accept(from net.Listener) {
	for {
		conn, err := from.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.ended:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close ends it all.
func (l *listener) Close() error {
	l.end()
	l.mu.Lock()
	err := l.current.Close()
	l.mu.Unlock()
	l.wait.Wait()
	return ignoreClosed(err)
}

// Addr is where clients look for it.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
