package main

/*
#include "link.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A link is a socket to a container's init that is closed when it executes the
// program. It tells of that moment, and before it hands over what init is to
// stage, and a compiled seccomp filter, see link.c. It goes in as the one libcontainer has for a pidfd,
// since there is no other way to hand a file to init that the container does
// not inherit.
type link struct {
	ours, theirs *os.File
}

// newLink makes a link with what init is to stage, and a filter, or nil for none.
func newLink(s stage, filter []byte) (*link, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	l := &link{ours: os.NewFile(uintptr(p[0]), "link"), theirs: os.NewFile(uintptr(p[1]), "link")}
	if _, err := l.ours.Write(s.encode()); err != nil {
		return nil, fmt.Errorf("hand over stage: %w", err)
	}
	if filter == nil {
		return l, nil
	}
	if _, err := l.ours.Write(filter); err != nil {
		return nil, fmt.Errorf("hand over seccomp filter: %w", err)
	}
	return l, nil
}

// finish has the thread do its part. It is called when init waits to execute
// the program.
func (l *link) finish() error {
	// So that a read ends when init is gone.
	l.theirs.Close()
	// First the pidfd, which is of no use, and is dropped unreceived.
	b := make([]byte, 64)
	if _, err := l.ours.Read(b); err != nil {
		return fmt.Errorf("finish init: %w", err)
	}
	if _, err := l.ours.Write([]byte{1}); err != nil {
		return fmt.Errorf("finish init: %w", err)
	}
	n, err := l.ours.Read(b)
	if err == nil && (n != 1 || b[0] != 0) {
		err = errors.New("the kernel refuses the seccomp filter, /dev/null or huge pages")
	}
	if err != nil {
		return fmt.Errorf("finish init: %w", err)
	}
	return nil
}

// awaitExec returns when init has executed the program, or has ended. Whoever is
// told before of the start could still meet libcontainer's process, which a
// signal ends without the program having run, and nobody may look into.
func (l *link) awaitExec(pid int) {
	b := make([]byte, 64)
	for {
		if n, err := l.ours.Read(b); n == 0 || err != nil {
			break
		}
	}
	// The other threads are gone, so execve(2) cannot fail any more, but it may still be at work for some microseconds.
	// Nothing tells of its end. When it is not the first thread that executes, that one is a zombie for a moment,
	// before the other becomes it: the process has no program then, and nobody can enter it, but it has not ended. A
	// pidfd tells these apart, since it is readable only once the process is without threads.
	ours, _ := os.Readlink("/proc/self/exe")
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(pidfd)
	for {
		exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
		if err == nil && exe != ours {
			return
		}
		if err != nil && (!errors.Is(err, os.ErrNotExist) || ended(pidfd)) {
			return
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// ended says whether the process has, without waiting for it.
func ended(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// joinLink is the other end of a link, in libcontainer's init life.
func joinLink() error {
	fd, err := strconv.Atoi(os.Getenv("_LIBCONTAINER_PIDFD_SOCK"))
	if err != nil {
		return fmt.Errorf("find the launcher's socket: %w", err)
	}
	b := make([]byte, 64<<10)
	n, err := unix.Read(fd, b)
	if err != nil {
		return os.NewSyscallError("read", err)
	}
	s, err := decodeStage(b[:n])
	if err != nil {
		return err
	}
	if err := s.set(); err != nil {
		return err
	}
	if C.link_join(C.int(fd)) != 0 {
		return errors.New("seccomp filter cannot be taken over")
	}
	return nil
}
