package main

/*
#include "filter.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A loader puts a compiled seccomp filter on a container's init, see filter.c.
// Its socket goes in as the one libcontainer has for a pidfd, since there is no
// other way to hand a file to init that the container does not inherit.
type loader struct {
	ours, theirs *os.File
}

func newLoader(filter []byte) (*loader, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	l := &loader{ours: os.NewFile(uintptr(p[0]), "loader"), theirs: os.NewFile(uintptr(p[1]), "loader")}
	if _, err := l.ours.Write(filter); err != nil {
		return nil, fmt.Errorf("hand over seccomp filter: %w", err)
	}
	return l, nil
}

// load has the filter loaded. It is called when init waits to execute the
// program.
func (l *loader) load() error {
	// So that a read ends when init is gone.
	l.theirs.Close()
	// First the pidfd, which is of no use, and is dropped unreceived.
	b := make([]byte, 64)
	if _, err := l.ours.Read(b); err != nil {
		return fmt.Errorf("load seccomp filter: %w", err)
	}
	if _, err := l.ours.Write([]byte{1}); err != nil {
		return fmt.Errorf("load seccomp filter: %w", err)
	}
	n, err := l.ours.Read(b)
	if err == nil && (n != 1 || b[0] != 0) {
		err = errors.New("the kernel refuses it")
	}
	if err != nil {
		return fmt.Errorf("load seccomp filter: %w", err)
	}
	return nil
}

// awaitFilter is the other end of a loader, in libcontainer's init life.
func awaitFilter() error {
	fd, err := strconv.Atoi(os.Getenv("_LIBCONTAINER_PIDFD_SOCK"))
	if err != nil {
		return nil // a container without a filter
	}
	if C.filter_wait(C.int(fd)) != 0 {
		return errors.New("seccomp filter cannot be taken over")
	}
	return nil
}
