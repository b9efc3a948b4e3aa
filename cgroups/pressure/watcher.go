// Package pressure hears from the kernel that memory, disks, processors or process IDs are getting scarce, on the
// machine or in a control group: pressure stall triggers, thresholds of memory and changes of counters of events.
// Nothing is polled; who has no events costs nothing.
package pressure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// ErrUnsupported says that the kernel has no such source, so that the caller goes on without.
var ErrUnsupported = errors.New("the kernel does not tell")

// Watcher waits for the events of its sources, in one goroutine with one thread. The runtime's own poller cannot wait
// for it: it would ask the trigger of a pressure stall first, whose event is taken away by whoever asks.
type Watcher struct {
	epoll int
	stop  int // an eventfd, the watch with the number 0
	done  chan struct{}

	mu      sync.Mutex
	closed  bool
	last    uint64
	watches map[uint64]*watch // by the number that the kernel hands back, as descriptors are used again
}

// watch is one descriptor. Its functions are called with the watcher's mutex held.
type watch struct {
	fd int
	// happened takes the event away and says whether there can be another one.
	happened func(events uint32) bool
	// gone is told that nothing happens any more.
	gone func()
}

// New returns a Watcher that watches nothing yet.
func New() (*Watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch pressure: %w", err)
	}
	stop, err := eventfd()
	if err == nil {
		if err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			unix.Close(stop)
		}
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("watch pressure: %w", err)
	}
	w := &Watcher{epoll: epoll, stop: stop, done: make(chan struct{}), watches: map[uint64]*watch{}}
	go func() {
		defer close(w.done)
		for w.wait() {
		}
	}()
	return w, nil
}

// Close ends all sources and their channels; it can be repeated.
func (w *Watcher) Close() error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if !first {
		<-w.done
		return nil
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := kernfs.Retry(func() (int, error) { return unix.Write(w.stop, one) }); err != nil {
		return fmt.Errorf("end watching pressure: %w", err)
	}
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.watches {
		w.end(id)
	}
	unix.Close(w.stop)
	unix.Close(w.epoll)
	return nil
}

// wait hands events out once; false when the watcher is closed.
func (w *Watcher) wait() bool {
	var events [16]unix.EpollEvent
	n, err := kernfs.Retry(func() (int, error) { return unix.EpollWait(w.epoll, events[:], -1) })
	if err != nil {
		return false // of a descriptor of our own there is no other error than that it is none
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events[:n] {
		id := number(&e)
		if watch, ok := w.watches[id]; ok && !watch.happened(e.Events) {
			w.end(id)
		}
	}
	return !w.closed
}

// add takes the descriptor over, also when it fails. gone is called then, too.
func (w *Watcher) add(events uint32, one *watch) (id uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		one.gone()
		unix.Close(one.fd)
		return 0, os.ErrClosed
	}
	w.last++
	w.watches[w.last] = one
	e := unix.EpollEvent{Events: events, Fd: int32(uint32(w.last)), Pad: int32(uint32(w.last >> 32))}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, one.fd, &e); err != nil {
		w.end(w.last)
		return 0, err
	}
	return w.last, nil
}

func number(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// end is called with the mutex held. Closing a descriptor takes it out of the epoll set: nobody else has it. Who uses
// it beside the Watcher is told before, as its number is soon another one's.
func (w *Watcher) end(id uint64) {
	if one, ok := w.watches[id]; ok {
		delete(w.watches, id)
		one.gone()
		unix.Close(one.fd)
	}
}

func (w *Watcher) remove(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(id)
}

// Source tells of one kind of event. Events that nobody has taken yet are one.
type Source struct {
	w      *Watcher
	id     uint64
	events chan struct{}
}

// Events receives after something happened. It is closed when nothing can happen any more: the source or the Watcher
// was closed, or the group is gone.
func (s *Source) Events() <-chan struct{} { return s.events }

// Close ends the source; it can be repeated.
func (s *Source) Close() { s.w.remove(s.id) }

// source makes a Source of a descriptor, which it takes over.
func (w *Watcher) source(fd int, events uint32, happened func(events uint32) (news, more bool)) (*Source, error) {
	s := &Source{w: w, events: make(chan struct{}, 1)}
	id, err := w.add(events, &watch{
		fd: fd,
		happened: func(events uint32) bool {
			news, more := happened(events)
			if news {
				tell(s.events)
			}
			return more
		},
		gone: func() { close(s.events) },
	})
	s.id = id
	return s, err
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// eventfd returns a descriptor that the kernel adds to when something happened.
func eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("make eventfd: %w", err)
	}
	return fd, nil
}

// drain takes the events of an eventfd away.
func drain(fd int) uint64 {
	var buf [8]byte
	n, err := kernfs.Retry(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil || n != len(buf) {
		return 0
	}
	return binary.NativeEndian.Uint64(buf[:])
}

// unsupported names what the kernel does not have.
func unsupported(what string, err error) error {
	for _, missing := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.ENODEV, unix.ENOSYS} {
		if errors.Is(err, missing) {
			return fmt.Errorf("watch %s: %w: %w", what, ErrUnsupported, err)
		}
	}
	return fmt.Errorf("watch %s: %w", what, err)
}
