package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// SocketName is the socket's name in the run directory.
const SocketName = "berth.sock"

// maxSocketPath is what fits into the kernel's sockaddr_un with the final NUL.
const maxSocketPath = 107

// Listen makes the agent's socket, for root only. A socket that is there is a dead agent's: the run directory is locked.
func Listen(runDir string) (net.Listener, error) {
	path := filepath.Join(runDir, SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	addr, done, err := Address(runDir)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// It would remove the address, which may be one of /proc. The next agent removes the socket.
	l.SetUnlinkOnClose(false)
	// The run directory lets nobody else list it, but pass through it.
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("restrict socket: %w", err)
	}
	return l, nil
}

// Address is the address of the socket in the run directory, valid until done is called. A path that is too long for an address
// is taken by way of a descriptor.
func Address(runDir string) (addr string, done func(), err error) {
	path := filepath.Join(runDir, SocketName)
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	d, err := os.Open(runDir)
	if err != nil {
		return "", nil, fmt.Errorf("open run directory: %w", err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), SocketName), func() { d.Close() }, nil
}
