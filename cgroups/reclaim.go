package cgroups

import (
	"errors"
	"fmt"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ErrInUse says that a memory limit was asked for that is below what the group uses now.
var ErrInUse = errors.New("the limit is below what is in use")

// Reclaimable says whether a group can have a memory limit: v1 refuses one that is below what is in use, where v2 kills
// for it.
func Reclaimable(h *Hierarchy, path string, r *specs.LinuxResources) error {
	if h.mode != Unified {
		return nil
	}
	return Fits(h, path, r)
}

// Fits says whether a group uses no more memory than the limit that it shall have; one that is not there does. It
// compares with the working set: the kernel drops the rest of the file cache when the limit falls.
func Fits(h *Hierarchy, path string, r *specs.LinuxResources) error {
	if r == nil || r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit <= 0 {
		return nil
	}
	u, err := h.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if limit := uint64(*r.Memory.Limit); u.Memory.WorkingSet > limit {
		return fmt.Errorf("%d bytes are used (%d less %d of inactive cache), the limit would be %d: %w",
			u.Memory.WorkingSet, u.Memory.Usage, u.Memory.InactiveFile, limit, ErrInUse)
	}
	return nil
}
