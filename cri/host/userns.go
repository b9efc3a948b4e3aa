package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// LookForUserNS looks at what may change each time, and tries what may not once.
func (m *Host) LookForUserNS(try func() error) func() error {
	return func() error {
		if err := try(); err != nil {
			return fmt.Errorf("user namespaces cannot be used here: %w", err)
		}
		return passable(m.Paths.Containers())
	}
}

// UntilAnswered tries once. What the state of the machine keeps from being tried, such as a disk that cannot be
// written, is tried again by the next who asks.
func UntilAnswered(try func() error) func() error {
	var (
		mu     sync.Mutex
		tried  bool
		answer error
	)
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if !tried {
			answer = try()
			tried = !snapshot.OfTheMoment(answer)
		}
		return answer
	}
}

// Features are those of the kernel that pods may ask for.
func (m *Host) Features() *runtimeapi.RuntimeHandlerFeatures {
	// The call that sets all mounts of a tree read-only at once is in kernels from 5.12 on.
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return &runtimeapi.RuntimeHandlerFeatures{
		RecursiveReadOnlyMounts: !errors.Is(err, unix.ENOSYS), UserNamespaces: m.UserNamespaces() == nil,
	}
}

// TryUserNS makes a user namespace and mounts layers with its ids.
func (m *Host) TryUserNS() error {
	all := specs.LinuxIDMapping{HostID: 1 << 16, Size: 1 << 16}
	ns, err := m.Keepers.NewUserNS(SysMapping(all), SysMapping(all), false)
	if err != nil {
		return err
	}
	err = snapshot.TryIDs(m.Paths.Snapshots(), snapshot.IDs{UserNS: ns.Path("user"), UID: all.HostID, GID: all.HostID})
	return errors.Join(err, ns.Close())
}

// SysMapping is a mapping of ids as the kernel is given it.
func SysMapping(m specs.LinuxIDMapping) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)}}
}

// passable says whether everybody may pass through a directory and all above it. The root of a pod with ids of its own
// is nobody to them, and has to come to the root file system of its container to make it its own.
func passable(dir string) error {
	for dir, err := filepath.Abs(dir); ; dir = filepath.Dir(dir) {
		if err != nil {
			return err
		}
		fi, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if fi.Mode()&0o001 == 0 {
			return fmt.Errorf("pods with ids of their own cannot pass through %s (mode %04o, it needs o+x)", dir, fi.Mode().Perm())
		}
		if dir == "/" {
			return nil
		}
	}
}
