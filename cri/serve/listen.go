package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/socket"
)

// ErrInUse says that another process listens on the socket.
var ErrInUse = errors.New("another runtime listens on the socket")

// Path is the path in the address of a socket, which may be a path or a unix:// URL.
func Path(address string) (string, error) {
	path := strings.TrimPrefix(address, "unix://")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("socket %q: not the absolute path of a unix socket", address)
	}
	return path, nil
}

// listen listens on a socket for root only, in place of one whose process is dead. Whoever else does the same at the same moment
// waits: the directory is locked meanwhile, so that no lock file is left.
func listen(path string) (m socket.Made, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return m, fmt.Errorf("make directory of the socket: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return m, fmt.Errorf("open directory of the socket: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return m, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := free(path, lock); err != nil {
		return m, err
	}
	// It gets its mode where nobody else can reach it, and its name when it is ready: else it would be open to everybody for a
	// moment, or refuse those who connect early.
	private, err := os.MkdirTemp(dir, ".s")
	if err != nil {
		return m, fmt.Errorf("make directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(private) }() // it is empty, and nobody looks there
	pinned, err := os.Open(private)
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
	made := filepath.Join(private, "s")
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
	return socket.Made{Listener: owned{l, path, own}, File: own}, nil
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
