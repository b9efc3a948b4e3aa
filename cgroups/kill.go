package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// ErrSelf says that the calling process is in the group it was asked to kill.
var ErrSelf = errors.New("this process is in the group itself")

// Kill sends SIGKILL to everything in the group and below, so that nothing can have escaped by forking, and waits for
// the deaths. A missing group is no error.
func (h *Hierarchy) Kill(ctx context.Context, path string) error {
	g, err := groupAt(h, path)
	if err != nil {
		return err
	}
	v, err := g.kill()
	defer v.close()
	if err != nil {
		return err
	}
	if err := v.wait(ctx); err != nil {
		return fmt.Errorf("kill group %s: processes %v did not die: %w", g.path, v.pids(), err)
	}
	return nil
}

// victims are the processes that were sent SIGKILL, held by pidfd so that neither the wait nor the signal can hit a
// later process of the same number.
type victims map[int]int

func (v victims) close() {
	for _, fd := range v {
		unix.Close(fd)
	}
}

// freezeAfter is the round from which the group is frozen before it is listed. One round is nearly always enough; only
// something that forks faster than we list needs more.
const (
	freezeAfter = 2
	maxRounds   = 50
)

// kill sends SIGKILL to everything in the group and below, and returns what it was sent to, also when it fails.
func (g group) kill() (victims, error) {
	v, h := victims{}, g.h
	if err := g.refuseSelf(); err != nil {
		return v, err
	}
	if h.unified != "" {
		// Atomic against forks, since Linux 5.14. On hybrid machines it reaches whoever joined the v2 side too.
		_ = kernfs.Write(h.unified+g.path, "cgroup.kill", "1")
	}
	for round := range maxRounds {
		thaw := func() {}
		if round >= freezeAfter {
			thaw = g.freeze()
		}
		fresh, err := g.signal(v)
		thaw()
		if err != nil {
			return v, err
		}
		if fresh == 0 {
			if len(v) > 0 {
				h.Thaw(g.path) // somebody else may have frozen it
			}
			return v, nil
		}
	}
	return v, fmt.Errorf("kill group %s: new processes keep appearing", g.path)
}

func (g group) refuseSelf() error {
	groups, err := groupsOf(0)
	if err != nil {
		return err
	}
	for _, path := range groups {
		if g.holds(path) {
			return fmt.Errorf("kill group %s: %w", g.path, ErrSelf)
		}
	}
	return nil
}

// holds says whether a path is that of the group or of one below it.
func (g group) holds(path string) bool { return path == g.path || strings.HasPrefix(path, g.path+"/") }

// signal kills every process not yet in v and returns how many there were.
func (g group) signal(v victims) (int, error) {
	pids, err := g.h.Pids(g.path)
	if err != nil {
		return 0, err
	}
	fresh := 0
	for _, pid := range pids {
		if _, done := v[pid]; done {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
			continue
		}
		if err != nil {
			return fresh, fmt.Errorf("open process %d: %w", pid, err)
		}
		// The number may have been given to somebody else between the list and the open; what the pidfd holds now is
		// checked.
		if !g.inside(pid) {
			unix.Close(fd)
			continue
		}
		v[pid] = fd
		fresh++
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fresh, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return fresh, nil
}

func (g group) inside(pid int) bool {
	groups, err := groupsOf(pid)
	if err != nil {
		return false
	}
	for _, path := range groups {
		if g.holds(path) {
			return true
		}
	}
	return false
}

// freeze stops the group so that it cannot fork while it is listed, and returns the undo. Frozen v1 tasks only die when
// thawed. It is a help, not a need: errors are ignored.
func (g group) freeze() func() {
	h := g.h
	if h.mode == Unified {
		dir := h.unified + g.path
		_ = kernfs.Write(dir, "cgroup.freeze", "1")
		return func() { _ = kernfs.Write(dir, "cgroup.freeze", "0") }
	}
	root, ok := h.byName["freezer"]
	if !ok {
		return func() {}
	}
	dir := root + g.path
	for range 10 {
		_ = kernfs.Write(dir, "freezer.state", "FROZEN")
		// v1 says FREEZING until each task has passed a freezing point, and tells nobody when.
		if s, err := kernfs.ReadString(dir + "/freezer.state"); err != nil || s == "FROZEN" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return func() { _ = kernfs.Write(dir, "freezer.state", "THAWED") }
}

// Thaw ends what keeps the tasks of the group and of all below it from dying: v1's freezer holds them, SIGKILL or not,
// where v2's lets them die. What a group above has frozen stays. It is a help, not a need: errors are ignored.
func (h *Hierarchy) Thaw(path string) {
	path, err := GroupPath(path)
	root, ok := h.byName["freezer"]
	if err != nil || !ok || h.mode == Unified {
		return
	}
	thawTree(root+path, maxThawed)
}

// maxThawed bounds how many groups are looked at: a container that is not frozen as a whole may go on making them
// meanwhile.
const maxThawed = 1_000_000

// thawTree writes only where it has to: above first, since a frozen parent freezes its children again.
func thawTree(top string, most int) {
	for todo := []string{top}; len(todo) > 0 && most > 0; most-- {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s, err := kernfs.ReadString(dir + "/freezer.self_freezing"); err == nil && s != "0" {
			_ = kernfs.Write(dir, "freezer.state", "THAWED")
		}
		kids, err := subdirs(dir)
		if err != nil {
			continue
		}
		for _, k := range kids[:min(len(kids), most)] {
			todo = append(todo, dir+"/"+k)
		}
	}
}

// wait returns when every victim is dead, or with the context's error.
func (v victims) wait(ctx context.Context) error {
	if len(v) == 0 {
		return nil
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make eventfd: %w", err)
	}
	wake := os.NewFile(uintptr(stop), "eventfd")
	defer wake.Close()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		_, _ = wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !cancel() {
			<-ended // it has run: let it finish before the eventfd is closed
		}
	}()
	for len(v) > 0 {
		fds := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}}
		pids := []int{0}
		for pid, fd := range v {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			pids = append(pids, pid)
		}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for processes: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, f := range fds[1:] {
			if f.Revents != 0 {
				unix.Close(v[pids[i+1]])
				delete(v, pids[i+1])
			}
		}
	}
	return nil
}
