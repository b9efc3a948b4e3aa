package remote

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// processes are the first processes of what runs, whose end the kernel tells.
type processes struct {
	watched map[string]*os.File // pidfd by ID
	ended   chan string         // IDs
}

func newProcesses() *processes {
	return &processes{watched: map[string]*os.File{}, ended: make(chan string)}
}

// watch begins to wait for the end of a process. One that has ended already is told at once.
func (p *processes) watch(ctx context.Context, id string, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == nil && !inGroupOf(pid, id) {
		// The number is another process's by now, or that of another PID namespace. Or the process is that of a virtual
		// machine.
		unix.Close(fd)
		err = fmt.Errorf("process %d is not of %s", pid, id)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return err
	}
	p.watched[id] = f
	go func() {
		// A pidfd becomes readable when its process has ended. Nothing can be read from it.
		if conn.Read(ended) != nil {
			return // it was closed: nobody wants to know any more
		}
		select {
		case p.ended <- id:
		case <-ctx.Done():
		}
	}()
	return nil
}

func ended(pidfd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// inGroupOf says whether a process is in a cgroup with the ID in its name, as runtimes name them.
func inGroupOf(pid int, id string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(b), id)
}

func (p *processes) forget(id string) {
	if f, ok := p.watched[id]; ok {
		f.Close()
		delete(p.watched, id)
	}
}

func (p *processes) close() {
	for id := range p.watched {
		p.forget(id)
	}
}
