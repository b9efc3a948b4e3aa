package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/filetree"
)

// Inside is a listener for callers in this process: its connections are pairs of sockets that nobody else can reach.
type Inside struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewInside returns a listener that [Inside.Dial] connects to.
func NewInside() *Inside { return &Inside{conns: make(chan net.Conn), done: make(chan struct{})} }

// Dial connects; the error is [net.ErrClosed] when nobody will accept.
func (i *Inside) Dial(ctx context.Context) (net.Conn, error) {
	own, other, err := pair()
	if err != nil {
		return nil, err
	}
	select {
	case i.conns <- other:
		return own, nil
	case <-i.done:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, own.Close(), other.Close())
}

// Accept implements [net.Listener].
func (i *Inside) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (i *Inside) Close() error {
	i.once.Do(func() { close(i.done) })
	return nil
}

// Addr implements [net.Listener].
func (*Inside) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// pair are two sockets that are connected to each other.
func pair() (one, other net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	if one, err = connOf(fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if other, err = connOf(fds[1]); err != nil {
		return nil, nil, errors.Join(err, one.Close())
	}
	return one, other, nil
}

func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer f.Close()
	return net.FileConn(f)
}

// Used says whether a data directory has volumes, snapshots or damaged records. One that cannot be read counts as one
// that has.
func Used(dataDir string) bool {
	for _, d := range []string{"records/volumes", "records/snapshots", "records/groups", "volumes", "images", "inline", "quarantine"} {
		files, err := os.ReadDir(filepath.Join(dataDir, d))
		if len(files) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Leave has no device of a volume be open that nobody uses any more, and removes a data directory that has no volumes;
// it says whether there is none any more. No driver may run on it.
func Leave(ctx context.Context, dataDir string) (gone bool, err error) {
	if err := closeUnused(ctx, dataDir); err != nil {
		return false, err
	}
	if Used(dataDir) {
		return false, nil
	}
	return true, filetree.RemoveAll(ctx, dataDir)
}

// closeUnused closes the encrypted devices of a data directory. The loop devices that they are on go with them.
func closeUnused(ctx context.Context, dataDir string) error {
	dir, err := resolve(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	vault := newVault(dir)
	open, err := filepath.Glob(vault.path("*"))
	for _, device := range open {
		err = errors.Join(err, vault.close(ctx, strings.TrimPrefix(filepath.Base(device), vault.prefix)))
	}
	return err
}
