package signal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// diskDeadline is how long a file system may take to say what it has: a local one takes microseconds.
const diskDeadline = time.Second

// disk asks one file system, which may be on a server that does not answer: statfs then hangs for ever and nothing can
// interrupt it. No second one is started before the first has returned.
type disk struct {
	dir    string
	statfs func(string, *unix.Statfs_t) (device uint64, err error)

	mu      sync.Mutex
	pending chan struct{} // closed when the call under way has returned
	late    bool          // it should have, long ago
	last    answer
}

type answer struct {
	device        uint64
	bytes, inodes Reading
	err           error
}

func newDisk(dir string) *disk { return &disk{dir: dir, statfs: statfs} }

// statfs says which device it is of, too.
func statfs(dir string, st *unix.Statfs_t) (device uint64, err error) {
	var file unix.Stat_t
	if err := unix.Statfs(dir, st); err != nil {
		return 0, err
	}
	err = unix.Stat(dir, &file)
	return file.Dev, err
}

// read waits for the answer to a call of its own, or to one under way. A call that is late is not waited for again: who
// reads wants to know of memory as well.
func (d *disk) read(ctx context.Context) answer {
	d.mu.Lock()
	if d.pending == nil {
		d.pending = make(chan struct{})
		go d.ask(d.pending)
	}
	pending, late := d.pending, d.late
	d.mu.Unlock()
	noAnswer := answer{err: fmt.Errorf("stat file system of %s: %w", d.dir, errNoAnswer)}
	if late {
		return noAnswer
	}
	timeout := time.NewTimer(diskDeadline)
	defer timeout.Stop()
	select {
	case <-pending:
	case <-ctx.Done():
		return answer{err: fmt.Errorf("stat file system of %s: %w", d.dir, ctx.Err())}
	case <-timeout.C:
		d.mu.Lock()
		d.late = d.pending == pending
		d.mu.Unlock()
		return noAnswer
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

var errNoAnswer = errors.New("it does not answer")

func (d *disk) ask(done chan struct{}) {
	var st unix.Statfs_t
	now := time.Now()
	device, err := d.statfs(d.dir, &st)
	for errors.Is(err, unix.EINTR) {
		device, err = d.statfs(d.dir, &st)
	}
	a := answer{device: device}
	if err != nil {
		a.err = fmt.Errorf("stat file system of %s: %w", d.dir, err)
	} else {
		a.bytes, a.inodes = space(&st, now)
	}
	d.mu.Lock()
	d.last, d.pending, d.late = a, nil, false
	d.mu.Unlock()
	close(done)
}

// space is what a file system has left for those who are not root, whose reserve is nobody's to count on.
func space(st *unix.Statfs_t, now time.Time) (bytes, inodes Reading) {
	size := uint64(max(st.Bsize, 0))
	bytes = Reading{Available: product(st.Bavail, size), Capacity: product(st.Blocks, size), Time: now}
	inodes = Reading{Available: product(st.Ffree, 1), Capacity: product(st.Files, 1), Time: now}
	return bytes, inodes
}

// product is cut where it does not fit: file systems in user space say what they like.
func product(a, b uint64) int64 {
	high, low := bits.Mul64(a, b)
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}
