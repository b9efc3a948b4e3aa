package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process listens on the socket.
var ErrInUse = errors.New("another process listens on the socket")

// Path is the path in the address of a socket, which may be a path or a unix:// URL.
func Path(address string) (string, error) {
	path := strings.TrimPrefix(address, "unix://")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("socket %q: not the absolute path of a unix socket", address)
	}
	return path, nil
}

// Private is the directory that the socket at path is made in.
func Private(path string) string { return path + ".new" }

// ListenPrivate listens at path for root only, and again when the socket is missed. A socket that is left of a process
// that is dead is replaced, one that somebody listens on is [ErrInUse].
func ListenPrivate(path string, log *slog.Logger) (net.Listener, error) {
	return Listen(path, log, func(ctx context.Context) (Made, error) { return private(ctx, path) })
}

// private listens on a socket for root only, in place of one whose process is dead. Whoever else does the same at the
// same moment waits: the directory is locked meanwhile, so that no lock file is left.
func private(ctx context.Context, path string) (m Made, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return m, fmt.Errorf("make directory of the socket: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return m, fmt.Errorf("open directory of the socket: %w", err)
	}
	defer lock.Close()
	if err := take(ctx, lock); err != nil {
		return m, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := free(path, lock); err != nil {
		return m, err
	}
	// It gets its mode where nobody else can reach it, and its name when it is ready: else it would be open to
	// everybody for a moment, or refuse those who connect early.
	beside := Private(path)
	made := filepath.Join(beside, "s")
	for _, left := range []string{made, beside} { // by a process that was killed: nobody else has the lock
		if err := os.Remove(left); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return m, fmt.Errorf("clear the way: %w", err)
		}
	}
	if err := os.Mkdir(beside, 0o700); err != nil {
		return m, fmt.Errorf("make directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(beside) }() // it is empty, and nobody looks there
	pinned, err := os.Open(beside)
	if err != nil {
		return m, fmt.Errorf("open directory: %w", err)
	}
	defer pinned.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: below(pinned, "s"), Net: "unix"})
	if err != nil {
		return m, fmt.Errorf("listen on %s: %w", path, err)
	}
	// It would remove the name it was made with.
	l.SetUnlinkOnClose(false)
	own, err := os.Lstat(made)
	if err == nil {
		err = os.Chmod(made, 0o600)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		l.Close()
		return m, fmt.Errorf("make socket %s: %w", path, err)
	}
	return Made{Listener: owned{l, path, own}, File: own}, nil
}

// How long the lock of a directory is waited for, and how often it is tried: anybody who may read the directory can
// hold it, and the kernel has no wait for it that could be ended.
const (
	lockWait = 10 * time.Second
	lockLook = 5 * time.Millisecond
)

// take locks a directory, unless ctx ends first.
func take(ctx context.Context, dir *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errors.New("another process keeps it locked"))
	defer cancel()
	look := time.NewTicker(lockLook)
	defer look.Stop()
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// below is an address in an open directory: sockaddr_un has room for 107 bytes, and paths may be longer.
func below(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
}

// free is nil when there is nothing at the path, or a socket that nobody listens on.
func free(path string, dir *os.File) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and not a socket", path)
	}
	conn, err := net.Dial("unix", below(dir, filepath.Base(path)))
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w %s", ErrInUse, path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("connect to %s: %w", path, err)
	}
	return nil
}

// owned removes its socket's name when it ends, unless another socket has it by now.
type owned struct {
	*net.UnixListener
	path string
	own  os.FileInfo
}

func (o owned) Close() error {
	// As long as it is open nobody else takes the name, so that what is its own stays so here.
	now, err := os.Lstat(o.path)
	if err == nil && os.SameFile(now, o.own) {
		err = os.Remove(o.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, o.UnixListener.Close())
}
