package cgroups

import (
	"fmt"
	"strings"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Warm makes the attaches of the next moments cheap. Attaching takes the kernel's cgroup_threadgroup_rwsem for writing,
// and when nobody did so for a while that waits for an RCU grace period, 6 ms or more. The wait belongs to the
// semaphore, not to the group, so attaching the calling process to the group it is in already pays it for whoever comes
// next: whoever hears that a pod will start calls this beside the parsing.
func Warm(h *Hierarchy) error {
	dir, err := warmDir(h)
	if err != nil {
		return err
	}
	return kernfs.Write(dir, "cgroup.procs", "0")
}

func warmDir(h *Hierarchy) (string, error) {
	groups, err := groupsOf(0)
	if err != nil {
		return "", err
	}
	for _, t := range h.trees {
		name := "" // the v2 hierarchy
		if !t.unified {
			name = t.controllers[0]
		}
		if p, ok := groups[name]; ok {
			return t.dir + strings.TrimSuffix(p, "/"), nil
		}
	}
	return "", fmt.Errorf("find our own group: %w", ErrNoHierarchy)
}
