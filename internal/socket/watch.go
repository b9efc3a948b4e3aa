package socket

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// lostEntry is what can take a name from a socket. What is written to the files beside it, as the records of a
	// runtime are all the time, is not asked for: each event wakes who waits.
	lostEntry = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	lostSelf  = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// over is that nothing more is told of the directory, or that something was not.
	over = unix.IN_IGNORED | unix.IN_UNMOUNT | unix.IN_Q_OVERFLOW
)

// change is what may have become of a socket.
type change struct{ moved bool } // the directory was, or may have been

// changes hears what becomes of one name in a directory, and of the directory.
type changes struct {
	file   *os.File
	events chan change // of any number that nobody has taken the worst
}

func watch(path string) (*changes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	c := &changes{file: os.NewFile(uintptr(fd), "inotify"), events: make(chan change, 1)}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), lostEntry|lostSelf|unix.IN_ONLYDIR); err != nil {
		c.file.Close()
		return nil, &os.PathError{Op: "watch", Path: filepath.Dir(path), Err: err}
	}
	go c.read(filepath.Base(path))
	return c, nil
}

func (c *changes) close() { c.file.Close() }

// read tells until it is closed.
func (c *changes) read(name string) {
	buf := make([]byte, 4<<10)
	for {
		n, err := c.file.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(b[4:]), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))
			size = min(size, len(b))
			if moved := mask&(lostSelf|over) != 0; moved || unix.ByteSliceToString(b[unix.SizeofInotifyEvent:size]) == name {
				c.tell(change{moved: moved})
			}
			b = b[size:]
		}
	}
}

func (c *changes) tell(now change) {
	select {
	case before := <-c.events:
		now.moved = now.moved || before.moved
	default:
	}
	c.events <- now // by nobody else
}
