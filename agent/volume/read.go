package volume

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file of a volume that containers write to. The kernel does the walking and refuses to leave the
// volume, by a link, by ".." or into what is mounted in it. What it leads to is opened only after it has turned out to
// be a plain file: opening a device or a pipe that a container has made would be an act of its own. The error is
// fs.ErrNotExist when there is no such file.
func ReadFile(volPath, path string, most int64) ([]byte, error) {
	root, err := unix.Open(volPath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	defer unix.Close(root)
	at, err := beneath(root, path, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, explain(err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is no regular file")
	}
	// Without waiting for whoever has a lease on it.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > most:
		return nil, fmt.Errorf("it is larger than %d bytes", most)
	}
	return data, nil
}
