package cgroups

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Changes tells when somebody writes to a setting of a group. The kernel tells of every write through the file system,
// so that nothing has to be read to know that nothing has changed; it tells of our own writes as well.
type Changes struct {
	h    *Hierarchy
	f    *os.File
	mask uint32 // of the events

	mu     sync.Mutex
	groups map[int]string // by watch descriptor
	wds    map[string][]int
}

// NewChanges watches no group yet.
func NewChanges(h *Hierarchy) (*Changes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch groups: %w", err)
	}
	mask := uint32(unix.IN_MODIFY)
	if h.mode != Unified {
		// On v1 each exec writes to the tasks file of every hierarchy, and whoever is told of that wakes up for each.
		// The keeper has those files open for as long as the container runs, while settings are opened, written to and
		// closed.
		mask = unix.IN_CLOSE_WRITE
	}
	return &Changes{h: h, mask: mask, f: os.NewFile(uintptr(fd), "inotify"), groups: map[int]string{}, wds: map[string][]int{}}, nil
}

// Close ends the watching.
func (c *Changes) Close() error { return c.f.Close() }

// Add watches a group; one that is not there is not an error. The kernel forgets it when it is removed.
func (c *Changes) Add(group string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.wds[group]; ok {
		return nil
	}
	conn, err := c.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch group %s: %w", group, err)
	}
	for _, dir := range settingDirs(c.h, group) {
		var wd int
		var werr error
		err := conn.Control(func(fd uintptr) {
			wd, werr = unix.InotifyAddWatch(int(fd), dir, c.mask|unix.IN_ONLYDIR)
		})
		if err := errors.Join(err, werr); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		c.groups[wd] = group
		c.wds[group] = append(c.wds[group], wd)
	}
	return nil
}

// Remove ends the watching of a group.
func (c *Changes) Remove(group string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn, err := c.f.SyscallConn()
	for _, wd := range c.wds[group] {
		delete(c.groups, wd)
		if err == nil {
			// EINVAL: the group is gone, and the watch with it.
			_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
	delete(c.wds, group)
}

// settingDirs are the directories with the settings of a group.
func settingDirs(h *Hierarchy, group string) []string {
	if h.mode == Unified {
		return []string{h.Dir("", group)}
	}
	var out []string
	for _, c := range []string{"cpu", "cpuset", "memory", "pids", "blkio", "hugetlb"} {
		if dir := h.byName[c]; dir != "" {
			out = append(out, join(dir, group))
		}
	}
	return out
}

// Run calls fn for every write to a setting of a watched group, until ctx ends. group is "" when the kernel has lost
// count: anything may have been written.
func (c *Changes) Run(ctx context.Context, fn func(group, file string)) error {
	stop := context.AfterFunc(ctx, func() { _ = c.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 16<<10)
	for {
		n, err := c.f.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch groups: %w", err)
		}
		for _, e := range c.parse(buf[:n]) {
			fn(e.group, e.file)
		}
	}
}

type change struct{ group, file string }

func (c *Changes) parse(buf []byte) []change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []change
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(buf)))
		mask := binary.NativeEndian.Uint32(buf[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			break
		}
		name := string(bytes.TrimRight(buf[unix.SizeofInotifyEvent:end], "\x00"))
		buf = buf[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			out = append(out, change{})
			continue
		}
		group, ok := c.groups[wd]
		// What the kernel counts or tells in is of no interest: cgroup.procs is written to at every start.
		if ok && mask&c.mask != 0 && isSetting(name) {
			out = append(out, change{group, name})
		}
	}
	return out
}

func isSetting(file string) bool {
	for _, prefix := range []string{"cpu.", "cpuset.", "memory.", "pids.", "io.", "blkio.", "hugetlb."} {
		if strings.HasPrefix(file, prefix) {
			return !strings.Contains(file, "events") && file != "cpu.stat"
		}
	}
	return false
}
