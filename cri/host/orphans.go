package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// RemoveContainerDir removes what is known to be in the directory of a container, and the directory.
func RemoveContainerDir(l Layout, id string) error {
	if err := os.RemoveAll(filepath.Join(l.State(), id)); err != nil {
		return err
	}
	dirs, err := os.ReadDir(l.Container(id).ImageMounts())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range dirs {
		if err := Remove(filepath.Join(l.Container(id).ImageMounts(), d.Name())); err != nil {
			return err
		}
	}
	if err := removeRootfs(l.Container(id).Rootfs()); err != nil {
		return err
	}
	of := l.Container(id)
	for _, p := range []string{of.ImageMounts(), of.Spec(), of.Spec() + atomicfile.Part, of.Filter(), string(of)} {
		if err := Remove(p); err != nil {
			return err
		}
	}
	return nil
}

// removeRootfs removes the place a container's root file system was mounted at. A launcher that was killed together
// with its keeper may leave an init behind that goes on for a moment: what it makes after the unmount lands in the bare
// directory. It is removed only when the kernel has no mount there, so that nothing of a container or a volume can ever
// be reached.
func removeRootfs(dir string) error {
	err := Remove(dir)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %w", dir, unix.EBUSY)
	}
	return filetree.RemoveAll(context.Background(), dir)
}

// RemoveOrphanSandbox removes a sandbox of which there is no record that can be read.
func RemoveOrphanSandbox(ctx context.Context, m *Host, id string) error {
	if group := m.OrphanGroup(id); group != "" {
		m.Cgroups.Thaw(group) // what is frozen does not die
	}
	if err := m.Keepers.Kill(m.Paths.Sandbox(id).Keeper()); err != nil {
		return err
	}
	for _, pin := range []string{m.Paths.Sandbox(id).Shm(), m.Paths.Sandbox(id).UserNS()} {
		if err := m.Mounts.Unmount(pin); err != nil {
			return err
		}
	}
	if group := m.OrphanGroup(id); group != "" {
		if err := m.Cgroups.Remove(ctx, group); err != nil {
			return err
		}
	}
	return RemoveSandboxDir(m.Paths, id)
}

// OrphanGroup is the cgroup of a sandbox without a record; "" when its directory does not say.
func (m *Host) OrphanGroup(id string) string {
	group, err := os.ReadFile(m.Paths.Sandbox(id).Cgroup())
	if err != nil || !strings.Contains(string(group), id) {
		return ""
	}
	return string(group)
}

// RemoveOrphanContainer removes a container of which there is no record that can be read.
func RemoveOrphanContainer(ctx context.Context, m *Host, id string) error {
	if err := m.deleteOrphan(ctx, id); err != nil {
		return err
	}
	if spec, err := ReadSpec(m.Paths.Container(id).Spec()); err == nil && strings.Contains(spec.Linux.CgroupsPath, id) {
		if err := m.Cgroups.Remove(ctx, oci.KernelPath(spec.Linux.CgroupsPath)); err != nil {
			return err
		}
	}
	views, err := os.ReadDir(m.Paths.Container(id).ImageMounts())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, v := range views {
		if err := m.Mounts.Unmount(filepath.Join(m.Paths.Container(id).ImageMounts(), v.Name())); err != nil {
			return err
		}
	}
	if err := m.Mounts.Unmount(m.Paths.Container(id).Rootfs()); err != nil {
		return err
	}
	return RemoveContainerDir(m.Paths, id)
}

// RemoveRuntimeFiles removes what is kept of the runtime of a container.
func RemoveRuntimeFiles(l Layout, id string) error {
	if err := os.RemoveAll(l.Container(id).RuntimeRun()); err != nil {
		return err
	}
	return Remove(l.Container(id).RuntimeFile())
}

// deleteOrphan is deleteExternal for a container without a record.
func (m *Host) deleteOrphan(ctx context.Context, id string) error {
	b, err := os.ReadFile(m.Paths.Container(id).RuntimeFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	o := &handler.OCI{}
	if err := json.Unmarshal(b, o); err == nil && o.Path != "" {
		if err := m.Runtimes.External.Delete(ctx, o, id); err != nil {
			return err
		}
	}
	return RemoveRuntimeFiles(m.Paths, id)
}

// RemoveSandboxDir removes file by file what is known to be there, so that a mount that is still in it stops it instead
// of being emptied.
func RemoveSandboxDir(l Layout, id string) error {
	dir := string(l.Sandbox(id))
	for _, name := range []string{FileHosts, FileHostname, FileResolvConf, "cgroup", "shm", "userns"} {
		if err := Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// The record last: as long as anything is left, it says what.
	for _, own := range []string{l.Sandbox(id).Keeper(), l.Sandbox(id).Records()} {
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	for _, p := range []string{l.Sandbox(id).Record() + ".new", l.Sandbox(id).Record(), dir} {
		if err := Remove(p); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file or an empty directory, if there is one.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// WriteSpec writes the specification of a container, as a whole: limits of one that runs are changed in it, and who is
// killed at that leaves it as it was.
func WriteSpec(path string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode specification: %w", err)
	}
	return atomicfile.Write(path, b, 0o600)
}

// ReadSpec reads it.
func ReadSpec(path string) (*specs.Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read specification: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(b, spec); err != nil {
		return nil, fmt.Errorf("decode specification: %w", err)
	}
	return spec, nil
}
