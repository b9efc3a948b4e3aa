// Package socket keeps sockets where clients look for them: one that somebody deletes or replaces is made again, since without it nobody
// reaches who serves it.
package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Keep has the socket at path be there again whenever it is missed, until ctx ends: again makes it. own is the one that is there, and again
// returns the next: looked at before it has the name, since somebody may have replaced it after. What fails is tried again at the next
// change of the path. It returns at once when it cannot watch that.
func Keep(ctx context.Context, path string, own os.FileInfo, log *slog.Logger, again func() (os.FileInfo, error)) error {
	changes, err := fsnotify.NewWatcher()
	if err == nil {
		defer changes.Close()
		err = changes.Add(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("watch socket %s: %w", path, err)
	}
	for {
		if now, err := os.Lstat(path); err != nil || !os.SameFile(own, now) {
			if next, err := again(); err == nil {
				log.Warn("socket was removed by somebody and is made again", "socket", path)
				own = next
			} else if ctx.Err() == nil {
				log.Error("socket was removed by somebody and cannot be made again", "socket", path, "error", err)
			}
		}
		if !awaitChange(ctx, changes, path) {
			return nil
		}
	}
}

// awaitChange waits until something may have become of the path; false: ctx has ended.
func awaitChange(ctx context.Context, changes *fsnotify.Watcher, path string) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case e := <-changes.Events:
			if e.Name == path && !e.Has(fsnotify.Chmod) {
				return true
			}
		case <-changes.Errors: //nolint:errcheck // events were lost
			return true
		}
	}
}

// listener is what clients reach by one path, by whichever socket is there.
type listener struct {
	listen func() (Made, error)
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

// Listen listens at path, which listen does and is called again for when the socket is missed. What was accepted before goes on. The
// listener that listen returns leaves the path alone when it is closed, once there is another.
func Listen(path string, log *slog.Logger, listen func() (Made, error)) (net.Listener, error) {
	first, err := listen()
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	l := &listener{listen: listen, path: path, conns: make(chan accepted), end: end, ended: ctx.Done(), current: first.Listener}
	l.wait.Go(func() { l.accept(first.Listener) })
	l.wait.Go(func() {
		if err := Keep(ctx, path, first.File, log, l.again); err != nil {
			log.Warn("a socket that somebody removes is made again at the next start only", "socket", path, "error", err)
		}
	})
	return l, nil
}

func (l *listener) again() (os.FileInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended:
		return nil, net.ErrClosed
	default:
	}
	next, err := l.listen()
	if err != nil {
		return nil, err
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
