package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
)

// A sandbox's network namespace is pinned by the network. One with ids of its own has a user namespace too, pinned in the
// sandbox's directory, which then owns all its namespaces: by that the pod's root has power over them and over nothing else.

func (p *pods) pinNamespaces(sb *sandbox) act {
	if sb.ids != nil {
		return func(context.Context) error { return p.pinUserNS(sb) }
	}
	if sb.hostNetwork() {
		return nil
	}
	return func(context.Context) error { return sb.setNetNS(p.net.NewNamespace(sb.id)) }
}

func (p *pods) unpinNamespaces(sb *sandbox) act {
	if sb.ids == nil && sb.hostNetwork() {
		return nil
	}
	return func(ctx context.Context) error {
		var errs []error
		if !sb.hostNetwork() {
			if err := p.vacate(ctx, sb); err != nil {
				return err
			}
			errs = append(errs, p.net.Teardown(ctx, sb.network()), p.net.RemoveNamespace(sb.id))
		}
		if sb.ids != nil {
			errs = append(errs, p.mounts.unmount(p.paths.userns(sb.id)))
		}
		return errors.Join(errs...)
	}
}

// vacate sees to it that nobody is left in the sandbox's network namespace. A keeper that has ended in order says so.
func (p *pods) vacate(ctx context.Context, sb *sandbox) error {
	sb.mu.RLock()
	quiet := sb.quiet
	sb.mu.RUnlock()
	if quiet {
		return nil
	}
	return p.net.Vacate(ctx, sb.id)
}

func (p *pods) pinUserNS(sb *sandbox) (err error) {
	if err := p.userNamespaces(); err != nil {
		return fmt.Errorf("%w: %w", errPrecondition, err)
	}
	ns, err := p.keepers.NewUserNS(sysMapping(sb.ids.UIDs), sysMapping(sb.ids.GIDs), !sb.hostNetwork())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if err := p.mounts.pin(ns.Path("user"), p.paths.userns(sb.id)); err != nil {
		return fmt.Errorf("pin user namespace: %w", err)
	}
	if sb.hostNetwork() {
		return nil
	}
	return sb.setNetNS(p.net.AdoptNamespace(sb.id, ns.Path("net")))
}

func (sb *sandbox) setNetNS(path string, err error) error {
	if err != nil {
		return err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.rec.NetNS = path
	return nil
}

// lookForUserNS looks at what may change each time, and tries what may not once.
func (m *machine) lookForUserNS(try func() error) func() error {
	return func() error {
		if err := try(); err != nil {
			return fmt.Errorf("user namespaces cannot be used here: %w", err)
		}
		return passable(m.paths.containers())
	}
}

// untilAnswered tries once. What the state of the machine keeps from being tried, such as a disk that cannot be written, is tried again
// by the next who asks.
func untilAnswered(try func() error) func() error {
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

// features are those of the kernel that pods may ask for.
func (m *machine) features() *runtimeapi.RuntimeHandlerFeatures {
	// The call that sets all mounts of a tree read-only at once is in kernels from 5.12 on.
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return &runtimeapi.RuntimeHandlerFeatures{
		RecursiveReadOnlyMounts: !errors.Is(err, unix.ENOSYS), UserNamespaces: m.userNamespaces() == nil,
	}
}

// tryUserNS makes a user namespace and mounts layers with its ids.
func (m *machine) tryUserNS() error {
	all := specs.LinuxIDMapping{HostID: 1 << 16, Size: 1 << 16}
	ns, err := m.keepers.NewUserNS(sysMapping(all), sysMapping(all), false)
	if err != nil {
		return err
	}
	err = snapshot.TryIDs(m.paths.snapshots(), snapshot.IDs{UserNS: ns.Path("user"), UID: all.HostID, GID: all.HostID})
	return errors.Join(err, ns.Close())
}

// userNS is the path of the sandbox's user namespace, "" for the host's.
func (m *machine) userNS(sb *sandbox) string {
	if sb.ids == nil {
		return ""
	}
	return m.paths.userns(sb.id)
}

func sysMapping(m specs.LinuxIDMapping) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)}}
}

// passable says whether everybody may pass through a directory and all above it. The root of a pod with ids of its own is
// nobody to them, and has to come to the root file system of its container to make it its own.
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

// idsOf are those of a configuration that was checked.
func idsOf(sb *sandbox) *oci.IDs {
	ids, _ := oci.UserNamespace(sb.namespaceOptions().GetUsernsOptions())
	return ids
}
