package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Remove takes the group and everything below it away in every hierarchy, killing what still runs inside. A missing
// group is no error.
func (h *Hierarchy) Remove(ctx context.Context, path string) error {
	g, err := groupAt(h, path)
	if err != nil {
		return err
	}
	// Nearly always nobody is left, so the cheapest try comes first: one rmdir a hierarchy.
	busy, err := g.rmdirs()
	if err != nil || !busy {
		return err
	}
	v, err := g.kill()
	defer v.close()
	if err != nil {
		return err
	}
	if err := v.wait(ctx); err != nil {
		return fmt.Errorf("remove group %s: processes %v did not die: %w", g.path, v.pids(), err)
	}
	return g.removeEmpty(ctx)
}

func (v victims) pids() []int {
	var out []int
	for pid := range v {
		out = append(out, pid)
	}
	return out
}

// removeEmpty removes a tree whose processes are dead. The kernel may still be taking the last of them out of the group
// when its pidfd already says it is dead, hence the retries.
func (g group) removeEmpty(ctx context.Context) error {
	for try := 0; ; try++ {
		busy, err := g.rmdirs()
		if err != nil || !busy {
			return err
		}
		if try > 0 && try%4 == 0 {
			// Somebody put a process in after our kill.
			v, err := g.kill()
			if err == nil {
				err = v.wait(ctx)
			}
			v.close()
			if err != nil {
				return fmt.Errorf("remove group %s: %w", g.path, err)
			}
		}
		if err := g.settle(ctx, backoff(try)); err != nil {
			pids, _ := g.h.Pids(g.path)
			return fmt.Errorf("remove group %s: still in use by %v: %w", g.path, pids, err)
		}
	}
}

func backoff(try int) time.Duration { return min(time.Millisecond<<min(try, 7), 100*time.Millisecond) }

// rmdirs removes the tree in every hierarchy, bottom up, and says whether something was busy.
func (g group) rmdirs() (busy bool, err error) {
	for _, dir := range g.h.Dirs(g.path) {
		b, err := rmdirTree(dir)
		if err != nil {
			return busy, fmt.Errorf("remove group %s: %w", g.path, err)
		}
		busy = busy || b
	}
	return busy, nil
}

// rmdirTree tries the directory itself first, and only on EBUSY (which the kernel says for processes and for children)
// looks for children.
func rmdirTree(dir string) (busy bool, err error) {
	err = unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("rmdir %s: %w", dir, err)
	}
	kids, err := subdirs(dir)
	if err != nil {
		return false, err
	}
	for _, k := range kids {
		b, err := rmdirTree(dir + "/" + k)
		if err != nil {
			return busy, err
		}
		busy = busy || b
	}
	if busy {
		return true, nil
	}
	err = unix.Rmdir(dir)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINTR):
		return true, nil
	}
	return false, fmt.Errorf("rmdir %s: %w", dir, err)
}

// settle waits until the group may be empty: the v2 side tells by an event on cgroup.events, v1 has no event for it, so
// there the time limit is what ends the wait.
func (g group) settle(ctx context.Context, limit time.Duration) error {
	ctx2, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if g.h.unified != "" {
		_ = waitUnpopulated(ctx2, g.h.unified+g.path)
		if g.h.mode == Unified {
			return ctx.Err()
		}
	}
	<-ctx2.Done()
	return ctx.Err()
}

// waitUnpopulated blocks until cgroup.events of a v2 group says that no process is in it or below.
func waitUnpopulated(ctx context.Context, dir string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make inotify: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir+"/cgroup.events", unix.IN_MODIFY|unix.IN_DELETE_SELF); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		populated, err := isPopulated(dir)
		if err != nil || !populated {
			return err
		}
		if _, err := f.Read(buf); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("wait for %s: %w", dir, err)
		}
	}
}

func isPopulated(dir string) (bool, error) {
	data, err := os.ReadFile(dir + "/cgroup.events")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read events of %s: %w", dir, err)
	}
	n := field(data, "populated")
	return n != 0, nil
}
