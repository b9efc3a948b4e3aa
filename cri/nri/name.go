package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/socket"
)

// name is where plugins look for the socket. The library listens once, and what it listens on has a second name beside
// it, so that the first can be given again when somebody removes it.
type name struct {
	path, own string

	cancel context.CancelFunc
	wait   sync.WaitGroup
}

func newName(path string) *name { return &name{path: path, own: Own(path)} }

// Own is the second name of the socket at path. A process that was killed leaves both.
func Own(path string) string { return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)) }

// keep gives the socket, which the library has made, its name, and has it keep that until end.
func (n *name) keep(log *slog.Logger) error {
	own, err := n.give()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.wait.Go(func() {
		if err := socket.Keep(ctx, n.path, own, log, n.give); err != nil {
			log.Warn("a socket that somebody removes is made again at the next start only", "socket", n.path, "error", err)
		}
	})
	return nil
}

func (n *name) give() (os.FileInfo, error) {
	own, err := os.Lstat(n.own)
	if err != nil {
		return nil, err
	}
	// The library listens with what the umask leaves, and whoever connects can change every container.
	if err := os.Chmod(n.own, 0o600); err != nil {
		return nil, err
	}
	if err := free(n.path); err != nil {
		return nil, err
	}
	if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return own, os.Link(n.own, n.path)
}

// end removes the name, unless it is another's by now.
func (n *name) end() error {
	n.cancel()
	n.wait.Wait()
	own, err := os.Lstat(n.own)
	if err != nil {
		return nil // then the other is not known to be this one
	}
	now, err := os.Lstat(n.path)
	if err == nil && os.SameFile(own, now) {
		err = os.Remove(n.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Clear removes the socket that a runtime which was killed has left, and its directory when nothing else is in it. What
// another runtime serves stays.
func Clear(path string) error {
	n := newName(path)
	if free(n.own) == nil {
		own, err := os.Lstat(n.own)
		named, namedErr := os.Lstat(path)
		if err == nil && namedErr == nil && os.SameFile(own, named) {
			err = os.Remove(path)
		}
		if err == nil {
			err = os.Remove(n.own)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove socket: %w", err)
		}
	}
	err := os.Remove(filepath.Dir(path))
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return fmt.Errorf("remove directory of socket: %w", err)
}

// free says that nobody listens on a socket: it would be taken from another runtime.
func free(path string) error {
	if path == "" {
		return nil
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil // nobody answers
	}
	return errors.Join(fmt.Errorf("another runtime serves %s", path), conn.Close())
}
