// Package socket is the unix socket that the agent is reached by on its machine: where it is, made for root, and made
// again.
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

	"github.com/berth-node/berth/internal/socket"
)

// Name is the socket's name in the run directory.
const Name = "berth.sock"

// Part is the name that the socket has until it is ready.
const Part = Name + ".new"

// maxSocketPath is what fits into the kernel's sockaddr_un with the final NUL.
const maxSocketPath = 107

// Open opens the agent's socket in the run directory, without which no command reaches it. When it is missed it is made
// again.
func Open(runDir string, log *slog.Logger) (net.Listener, error) {
	return socket.Listen(filepath.Join(runDir, Name), log, func(context.Context) (socket.Made, error) { return Listen(runDir) })
}

// Listen makes the agent's socket, for root only. A socket that is there is a dead agent's: the run directory is
// locked. It gets its name when it is ready.
func Listen(runDir string) (m socket.Made, err error) {
	made := filepath.Join(runDir, Part)
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("remove old socket: %w", err)
	}
	addr, done, err := address(runDir, Part)
	if err != nil {
		return m, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return m, fmt.Errorf("listen on %s: %w", made, err)
	}
	// It would remove the address, which may be one of /proc. The next agent removes the socket.
	l.SetUnlinkOnClose(false)
	own, err := os.Lstat(made)
	if err == nil {
		// The run directory lets nobody else list it, but pass through it.
		err = os.Chmod(made, 0o600)
	}
	if err == nil {
		err = os.Rename(made, filepath.Join(runDir, Name))
	}
	if err != nil {
		l.Close()
		return m, fmt.Errorf("make socket: %w", err)
	}
	return socket.Made{Listener: l, File: own}, nil
}

// Address is the address of the socket in the run directory, valid until done is called. A path that is too long for an
// address is taken by way of a descriptor.
func Address(runDir string) (addr string, done func(), err error) { return address(runDir, Name) }

func address(runDir, name string) (addr string, done func(), err error) {
	path := filepath.Join(runDir, name)
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	d, err := os.Open(runDir)
	if err != nil {
		return "", nil, fmt.Errorf("open run directory: %w", err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name), func() { d.Close() }, nil
}
