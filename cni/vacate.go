package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// dying is how long Vacate waits for the end of what it has killed. Only a process that the kernel holds, in a file
// system that does not answer for instance, takes longer than some milliseconds.
const dying = 10 * time.Second

// Vacate kills every process that is in the namespace of a sandbox and returns when they have ended, so that its
// address can be another's: nobody has it any more. It does nothing where the namespace is not pinned. Whoever knows
// that nobody is left need not call it: it looks at every thread of the machine.
func (n *Network) Vacate(ctx context.Context, id string) error {
	if err := n.pins.vacate(ctx, id, n.log); err != nil {
		return fmt.Errorf("vacate network namespace of %s: %w", id, err)
	}
	return nil
}

func (p *pins) vacate(ctx context.Context, id string, log *slog.Logger) error {
	path, err := p.path(id)
	if err != nil {
		return err
	}
	ns, err := nsOf(path)
	if errors.Is(err, errNoNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	var home unix.Stat_t
	if err := unix.Fstat(int(p.home.Fd()), &home); err != nil || (nsID{home.Dev, home.Ino}) == ns {
		return fmt.Errorf("%s must not be the node's own namespace: %w", path, errors.Join(err, os.ErrInvalid))
	}
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	// What forks while it is looked for is found in the next round.
	for {
		found, err := ns.processes()
		if err != nil || len(found) == 0 {
			return err
		}
		for _, pid := range found {
			if err := ns.end(ctx, pid, log.With("sandbox", id)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("processes %v are still in it: %w", found, ctx.Err())
		}
	}
}

// nsID is the identity of a namespace.
type nsID struct{ dev, ino uint64 }

var errNoNamespace = errors.New("not a namespace")

// nsOf is the namespace at a path. A pin whose mount is gone is an ordinary file.
func nsOf(path string) (nsID, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if errors.Is(err, unix.ENOENT) || err == nil && fs.Type != unix.NSFS_MAGIC {
		return nsID{}, errNoNamespace
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		return nsID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return nsID{st.Dev, st.Ino}, nil
}

// processes lists who has a thread in the namespace, but not this process: a thread of it may be there for a moment.
func (ns nsID) processes() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && pid != os.Getpid() && ns.has(pid) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// has says whether a thread of the process is in the namespace. One that has ended is in none.
func (ns nsID) has(pid int) bool {
	var st unix.Stat_t
	tasks := filepath.Join("/proc", strconv.Itoa(pid), "task")
	dir, err := os.Open(tasks)
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, tid := range names {
		if unix.Stat(filepath.Join(tasks, tid, "ns/net"), &st) == nil && (nsID{st.Dev, st.Ino}) == ns {
			return true
		}
	}
	return false
}

// end kills a process and waits for its end. The pidfd holds the process while it is looked at once more: its number
// may have been given to another.
func (ns nsID) end(ctx context.Context, pid int, log *slog.Logger) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !ns.has(pid) {
		return nil
	}
	comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	log.Info("process is left in the network namespace of a pod that has ended and is killed", "pid", pid,
		"comm", string(bytes.TrimSpace(comm)))
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("process %d was killed and does not end: %w", pid, ctx.Err())
}
