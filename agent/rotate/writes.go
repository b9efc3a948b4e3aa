package rotate

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// writes tells of the first write to each file that it is armed for.
type writes struct {
	file   *os.File
	events chan *watched
	done   chan struct{}
	wait   sync.WaitGroup

	mu    sync.Mutex
	of    map[int32]*watched
	descr map[*watched]int32
}

func newWrites() (*writes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make inotify: %w", err)
	}
	w := &writes{
		file: os.NewFile(uintptr(fd), "inotify"), events: make(chan *watched), done: make(chan struct{}),
		of: map[int32]*watched{}, descr: map[*watched]int32{},
	}
	w.wait.Go(w.read)
	return w, nil
}

func (w *writes) close() {
	close(w.done)
	w.file.Close()
	w.wait.Wait()
}

// told has the logs that are written; nothing of a nil receiver.
func (w *writes) told() <-chan *watched {
	if w == nil {
		return nil
	}
	return w.events
}

// arm makes the next write to a log be told, and says whether it will be.
func (w *writes) arm(one *watched) bool {
	if w == nil {
		return false
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = conn.Control(func(fd uintptr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		// The watch is gone after one event, and with the file. A watch on the same file is the same watch again.
		wd, err := unix.InotifyAddWatch(int(fd), one.Path, unix.IN_MODIFY|unix.IN_ONESHOT)
		if err != nil {
			return
		}
		if old, had := w.descr[one]; had && old != int32(wd) {
			delete(w.of, old)
			_, _ = unix.InotifyRmWatch(int(fd), uint32(old)) // the old file's, if it has not fired
		}
		w.of[int32(wd)], w.descr[one] = one, int32(wd)
		ok = true
	})
	return ok && err == nil
}

// forget ends what was armed for a log.
func (w *writes) forget(one *watched) {
	if w == nil {
		return
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if wd, ok := w.descr[one]; ok {
			delete(w.of, wd)
			delete(w.descr, one)
			_, _ = unix.InotifyRmWatch(int(fd), uint32(wd))
		}
	})
}

func (w *writes) read() {
	buf := make([]byte, 4096)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return // it was closed
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
			for _, one := range w.meant(wd, mask) {
				select {
				case w.events <- one:
				case <-w.done:
					return
				}
			}
		}
	}
}

// meant are the logs that an event is about: all of them when the kernel has thrown some events away.
func (w *writes) meant(wd int32, mask uint32) []*watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*watched
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		for one := range w.descr {
			out = append(out, one)
		}
	case mask&unix.IN_MODIFY != 0:
		if one := w.of[wd]; one != nil {
			out = append(out, one)
		}
	}
	return out
}
