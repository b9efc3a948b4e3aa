package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// news is what the kernel says has happened to a group.
type news string

const (
	shaped   news = "shaped"   // a group was made or removed in it
	written  news = "written"  // somebody wrote to a setting, or v2 counted an event
	outOfMem news = "oom"      // v1: it has run out of memory, and somebody is about to be killed
	pressed  news = "pressure" // tasks waited for longer than the line
)

type notice struct {
	news
	path  string // "": the kernel lost count, anything may have happened
	what  string // of pressure: cpu, memory, io
	times uint64 // of outOfMem
}

// notices are the kernel's own word: inotify for groups that come and go, for writes to settings and v2's event
// counters; an eventfd for v1's OOM; pressure triggers. Of throttling alone the kernel tells nobody.
type notices struct {
	h      *cgroups.Hierarchy
	fs     *fsnotify.Watcher
	epoll  int
	wake   int // eventfd that ends the wait
	C      chan notice
	cancel context.CancelFunc
	wait   sync.WaitGroup

	triggers bool // the kernel's pressure triggers can be used

	mu     sync.Mutex
	groups map[string]string // by directory
	fds    map[int32]source
}

// source is a descriptor that is waited for.
type source struct {
	notice
	control int // of an eventfd: what it tells of, open as long as it is to tell
}

func newNotices(h *cgroups.Hierarchy) (*notices, error) {
	fs, err := fsnotify.NewBufferedWatcher(1024)
	if err != nil {
		return nil, fmt.Errorf("watch groups: %w", err)
	}
	n := &notices{h: h, fs: fs, epoll: -1, wake: -1, C: make(chan notice, 1024), groups: map[string]string{}, fds: map[int32]source{}, triggers: kernelHas(6, 5)}
	if n.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		n.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		err = unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, n.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(n.wake)})
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if err != nil {
		n.close()
		return nil, fmt.Errorf("watch groups: %w", err)
	}
	n.wait.Go(func() { n.readFiles(ctx) })
	n.wait.Go(func() { n.readDescriptors(ctx) })
	return n, nil
}

// kernelHas says whether the kernel is of this version or later.
func kernelHas(major, minor int) bool {
	var u unix.Utsname
	var a, b int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

func (n *notices) close() {
	n.cancel()
	_ = n.fs.Close()
	if n.wake >= 0 {
		_, _ = unix.Write(n.wake, binary.NativeEndian.AppendUint64(nil, 1))
	}
	n.wait.Wait()
	for fd := range n.fds {
		n.drop(fd)
	}
	for _, fd := range []int{n.epoll, n.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// follow watches a group from now on. On v1 it may be half made still: asked again when the rest has been told of, the
// rest is watched. The kernel forgets a group when it is removed.
func (n *notices) follow(group string, kind Kind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, dir := range n.h.Dirs(group) {
		if _, known := n.groups[dir]; known || n.fs.Add(dir) != nil {
			continue // it is not there, or there are no watches left: what is not told is seen at the next look
		}
		n.groups[dir] = group
		if dir == n.h.MemoryDir(group) && n.h.Mode() != cgroups.Unified {
			n.followOOM(group)
		}
		if dir == n.h.Dir("", group) && kind == kindPod {
			n.followPressure(group)
		}
	}
}

// above watches the groups above a group that is not there yet.
func (n *notices) above(group string) {
	for p := path.Dir(group); ; p = path.Dir(p) {
		if n.h.Exists(p) {
			n.follow(p, kindOther)
			return
		}
		if p == "/" {
			return
		}
	}
}

// followOOM has v1's memory controller signal an eventfd.
func (n *notices) followOOM(group string) {
	dir := n.h.MemoryDir(group)
	control, err := unix.Open(dir+"/memory.oom_control", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(control)
		return
	}
	s := source{notice{news: outOfMem, path: group}, control}
	line := strconv.Itoa(fd) + " " + strconv.Itoa(control)
	if os.WriteFile(dir+"/cgroup.event_control", []byte(line), 0) != nil || !n.waitFor(fd, unix.EPOLLIN, s) {
		unix.Close(fd)
		unix.Close(control)
	}
}

// pressureTrigger is a fifth of 2 seconds: the shortest window that the kernel gives to those without CAP_SYS_RESOURCE.
const pressureTrigger = "some 400000 2000000"

// followPressure sets triggers, on pods alone: for those with CAP_SYS_RESOURCE the kernel starts a thread for each
// group. Before Linux 6.5 nobody else is given any, and polling them is not safe against the group's removal; pressure
// is looked at there.
func (n *notices) followPressure(group string) {
	if !n.triggers {
		return
	}
	for _, what := range []string{"cpu", "memory", "io"} {
		fd, err := unix.Open(n.h.Dir("", group)+"/"+what+".pressure", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		_, err = unix.Write(fd, append([]byte(pressureTrigger), 0))
		if err != nil || !n.waitFor(fd, unix.EPOLLPRI, source{notice{news: pressed, path: group, what: what}, -1}) {
			unix.Close(fd)
			n.triggers = false // nor for the next group
		}
	}
}

func (n *notices) waitFor(fd int, events uint32, s source) bool {
	n.fds[int32(fd)] = s
	if unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}) != nil {
		delete(n.fds, int32(fd))
		return false
	}
	return true
}

// drop closes a descriptor and what it tells of; mu is held, or nobody else is there.
func (n *notices) drop(fd int32) {
	if c := n.fds[fd].control; c >= 0 {
		unix.Close(c)
	}
	delete(n.fds, fd)
	unix.Close(int(fd))
}

// tell does not wait for who does not listen: one who fell behind is told that anything may have happened.
func (n *notices) tell(ctx context.Context, what notice) {
	select {
	case n.C <- what:
	default:
		select {
		case n.C <- notice{}:
		case <-ctx.Done():
		}
	}
}

func (n *notices) readFiles(ctx context.Context) {
	for {
		select {
		case e, ok := <-n.fs.Events:
			if !ok {
				return
			}
			if what, ok := n.notice(e); ok {
				n.tell(ctx, what)
			}
		case err, ok := <-n.fs.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				n.tell(ctx, notice{})
			}
		}
	}
}

// notice says what an event of a file is: of a directory in a group, or of one of its settings.
func (n *notices) notice(e fsnotify.Event) (notice, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if group, ok := n.groups[e.Name]; ok && e.Has(fsnotify.Remove) {
		delete(n.groups, e.Name)
		return notice{news: shaped, path: path.Dir(group)}, true
	}
	dir, file := path.Split(e.Name)
	group, ok := n.groups[strings.TrimSuffix(dir, "/")]
	switch {
	case !ok:
		return notice{}, false
	case e.Has(fsnotify.Create) || e.Has(fsnotify.Remove):
		return notice{news: shaped, path: group}, true
	case e.Has(fsnotify.Write) && file != "cgroup.procs" && file != "tasks" && file != "cgroup.event_control" && !strings.HasSuffix(file, ".pressure"):
		return notice{news: written, path: group}, true
	}
	return notice{}, false
}

func (n *notices) readDescriptors(ctx context.Context) {
	events := make([]unix.EpollEvent, 64)
	for {
		k, err := unix.EpollWait(n.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ctx.Err() != nil {
			return
		}
		for _, e := range events[:k] {
			if what, ok := n.signalled(e); ok {
				n.tell(ctx, what)
			}
		}
	}
}

func (n *notices) signalled(e unix.EpollEvent) (notice, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.fds[e.Fd]
	if !ok {
		return notice{}, false
	}
	out := s.notice
	if s.news == outOfMem {
		buf := make([]byte, 8)
		if k, err := unix.Read(int(e.Fd), buf); err == nil && k == 8 {
			out.times = binary.NativeEndian.Uint64(buf)
		}
		// The last signal says that the group is going: nothing can be read of it any more.
		if _, err := unix.Pread(s.control, buf, 0); err != nil {
			n.drop(e.Fd)
			out.times--
		}
		return out, out.times > 0
	}
	if e.Events&unix.EPOLLPRI != 0 && e.Events&unix.EPOLLERR == 0 {
		return out, true
	}
	n.drop(e.Fd)
	return notice{}, false
}
