package inspect

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-node/berth/cgroups"
)

// Found says whose a process or group is.
type Found struct {
	Path      string `json:"path"`
	Kind      Kind   `json:"kind"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
	ID        string `json:"id,omitempty"`
	Pid       int    `json:"pid,omitempty"`
	Comm      string `json:"comm,omitempty"`
}

// find takes a process number, the inode of a group's directory (as tools print it, "inode:123" or a number that is no
// process), or a path: within the hierarchy or with its mount in front.
func (s *Snapshot) find(what string) (Found, error) {
	if pid, err := strconv.Atoi(what); err == nil && pid > 0 {
		for _, n := range s.all() {
			if slices.Contains(n.files.Pids, pid) {
				f := n.found()
				f.Pid, f.Comm = pid, s.Processes[pid].Comm
				return f, nil
			}
		}
	}
	if ino, err := strconv.ParseUint(strings.TrimPrefix(what, "inode:"), 10, 64); err == nil {
		for _, n := range s.all() {
			if n.files.Inode == ino && ino != 0 {
				return n.found(), nil
			}
		}
	}
	if strings.Contains(what, "/") {
		if n := s.at(what); n != nil {
			return n.found(), nil
		}
	}
	return Found{}, fmt.Errorf("%s is no process, inode or path of a pod's group: %w", what, ErrNotFound)
}

// at is the innermost known group at or above a path.
func (s *Snapshot) at(p string) *Node {
	var best *Node
	for _, n := range s.all() {
		if p == n.Path || strings.HasPrefix(p, n.Path+"/") || strings.HasSuffix(p, n.Path) || strings.Contains(p, n.Path+"/") {
			if best == nil || len(n.Path) > len(best.Path) {
				best = n
			}
		}
	}
	return best
}

func (n *Node) found() Found {
	f := Found{Path: n.Path, Kind: n.Kind, UID: n.UID, ID: n.ID}
	if n.UID != "" {
		f.Pod = n.UID
		if id, ok := n.snap.Names[n.UID]; ok && id.Name != "" {
			f.Pod = id.Namespace + "/" + id.Name
		}
	}
	if n.Kind == kindContainer {
		f.Container = n.Title
	}
	return f
}

// liveGroup is the group of a process that is not in a pod's group itself but in one a container made below it: the snapshot has
// those too, so this only helps with processes that were started after it.
func liveGroup(what, mount string) string {
	pid, err := strconv.Atoi(what)
	if err != nil {
		return ""
	}
	if _, err := os.Stat("/proc/" + what); err != nil {
		return ""
	}
	h, err := cgroups.Open(mount)
	if err != nil {
		return ""
	}
	p, err := h.FromPid(pid)
	if err != nil || p == "/" {
		return ""
	}
	return path.Clean(p)
}
