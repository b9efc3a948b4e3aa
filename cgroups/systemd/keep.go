package systemd

import (
	"errors"
	"hash/fnv"
	"sync"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// oomGroup is the one setting of pods that systemd writes and has no property for: whenever it applies a unit's
// settings, whichever of them has changed, it writes what it makes of OOMPolicy=, which slices do not have and which
// for a delegated scope is 0. At a daemon-reload, of which nobody is asked, it does so too; who watches the groups
// writes the value again then.
const oomGroup = "memory.oom.group"

// keepers are locks of groups by the hash of their paths. Without one, of two that change a group the second would read
// what systemd has just written for the first, and keep that.
type keepers [16]sync.Mutex

func (k *keepers) of(group string) *sync.Mutex {
	h := fnv.New32a()
	_, _ = h.Write([]byte(group))
	return &k[h.Sum32()%uint32(len(k))]
}

// keep does something to the unit of a group after which the group still has what systemd would reset.
func (s *Driver) keep(group string, change func() error) error {
	if s.h.Mode() != cgroups.Unified {
		return change()
	}
	lock := s.kept.of(group)
	lock.Lock()
	defer lock.Unlock()
	dir := s.h.Dir("", group)
	had, _ := kernfs.ReadString(dir + "/" + oomGroup)
	err := change()
	if had == "" || had == "0" {
		return err
	}
	if now, gone := kernfs.ReadString(dir + "/" + oomGroup); gone == nil && now != had {
		err = errors.Join(err, kernfs.Write(dir, oomGroup, had))
	}
	return err
}
