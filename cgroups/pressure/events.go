package pressure

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Counters tells when a file of counters changes, of those that the kernel tells of changes of: memory.events,
// memory.events.local, memory.swap.events and pids.events of a v2 group. Linux 4.9 to 6.10 tells of pids.events of a v1
// group as well; later ones count, and tell the file that only v2 has.
type Counters struct {
	*counted
	source *Source
}

// counted is what is known of a file of counters.
type counted struct {
	file string
	last string
}

// Counters watches a file. The counters of now are no news.
func (w *Watcher) Counters(file string) (*Counters, error) {
	c := &Counters{counted: &counted{file: file}}
	fd, err := kernfs.Retry(func() (int, error) { return unix.Open(file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, unsupported(file, err)
	}
	// The kernel tells of what is newer than what was read through the same descriptor.
	if _, err := c.changed(fd); err != nil {
		unix.Close(fd)
		return nil, unsupported(file, err)
	}
	c.source, err = w.source(fd, unix.EPOLLPRI, func(uint32) (news, more bool) {
		news, err := c.changed(fd)
		return news, err == nil // ENODEV: the group is gone
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", file, err)
	}
	return c, nil
}

// Events receives after a counter has changed. Whether it is closed when the group goes is up to the kernel: not each
// tells of that.
func (c *Counters) Events() <-chan struct{} { return c.source.Events() }

// Close ends the watching; it can be repeated.
func (c *Counters) Close() { c.source.Close() }

// changed reads the counters through the descriptor that is waited for.
func (c *counted) changed(fd int) (bool, error) {
	buf := make([]byte, 4096)
	n, err := kernfs.Pread(fd, buf)
	if err != nil {
		return false, err
	}
	news := string(buf[:n]) != c.last
	c.last = string(buf[:n])
	return news, nil
}
