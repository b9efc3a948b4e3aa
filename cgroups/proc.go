package cgroups

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FromPid is the group of a process in the hierarchy that stands for all (memory on v1).
func (h *Hierarchy) FromPid(pid int) (string, error) {
	all, err := groupsOf(pid)
	if err != nil {
		return "", err
	}
	if h.mode != Unified {
		for _, c := range []string{"memory", "cpu", "pids"} {
			if p, ok := all[c]; ok {
				return p, nil
			}
		}
	}
	if p, ok := all[""]; ok {
		return p, nil
	}
	return "", fmt.Errorf("find group of process %d: %w", pid, ErrNoHierarchy)
}

// groupsOf maps controller to path; "" is the v2 hierarchy.
func groupsOf(pid int) (map[string]string, error) {
	name := "/proc/self/cgroup"
	if pid > 0 {
		name = "/proc/" + strconv.Itoa(pid) + "/cgroup"
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("find group of process %d: %w", pid, err)
	}
	defer f.Close()
	return ParseProcCgroup(f)
}

// ParseProcCgroup reads /proc/<pid>/cgroup: lines of "id:controllers:path", where the v2 line has no controllers and
// the path may hold colons. A group that was removed under a dying process carries " (deleted)".
func ParseProcCgroup(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		parts := strings.SplitN(sc.Text(), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		path := strings.TrimSuffix(parts[2], " (deleted)")
		for c := range strings.SplitSeq(parts[1], ",") {
			out[c] = path
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read process groups: %w", err)
	}
	return out, nil
}

// Pids lists the processes in the group and in those below it, sorted. A process attached in only some of the v1
// hierarchies, as after a crash in the middle of attaching, is found too.
func (h *Hierarchy) Pids(path string) ([]int, error) {
	return union(h.Dirs(path), treePids)
}

func treePids(dir string) ([]int, error) {
	data, err := os.ReadFile(dir + "/cgroup.procs")
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV):
		return nil, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		data = nil // a threaded v2 group: its domain's cgroup.procs lists the processes
	case err != nil:
		return nil, fmt.Errorf("list processes: %w", err)
	}
	out := ParsePids(data)
	kids, err := subdirs(dir)
	if err != nil {
		return nil, err
	}
	for _, k := range kids {
		pids, err := treePids(dir + "/" + k)
		if err != nil {
			return nil, err
		}
		out = append(out, pids...)
	}
	return out, nil
}

// ParsePids reads a group's cgroup.procs. It skips 0, which stands for a process of a PID namespace we cannot see into.
func ParsePids(data []byte) []int {
	var out []int
	for line := range bytes.Lines(data) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}
