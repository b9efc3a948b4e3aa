package csitest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mounts has volumes be where the node asks for them. What is called within is called where half of an effect is there,
// and its error ends the call.
type mounts struct {
	store  *store
	ledger *ledger
	judge  judge
}

// stage makes a volume be there for the node.
func (m mounts) stage(v *Volume, at string, c *csi.VolumeCapability, within func() error) error {
	if c.GetBlock() != nil {
		if err := m.needImage(v); err != nil {
			return internal(err)
		}
		if _, err := m.store.attach(v.ID); err != nil {
			return internal(err)
		}
		return within()
	}
	return m.mount(v, at, c.GetMount(), within)
}

// needImage gives a volume that was not made for it something to be a block device.
func (m mounts) needImage(v *Volume) error {
	if _, err := os.Stat(m.store.image(v.ID)); err == nil {
		return nil
	}
	v.Block = true
	m.ledger.change(v.ID, func(v *Volume) { v.Block = true })
	return m.store.makeImage(v, "")
}

var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"sync": unix.MS_SYNCHRONOUS, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// mount mounts the file system of a volume.
func (m mounts) mount(v *Volume, at string, c *csi.VolumeCapability_MountVolume, within func() error) error {
	if m.store.kind == Directory {
		if _, err := os.Stat(filepath.Join(m.store.data(v.ID), canary)); err != nil && v.Source == "" {
			m.ledger.violation("what was in the volume %s is gone: %v", v.ID, err)
		}
	}
	var flags uintptr
	var other []string
	for _, f := range c.GetMountFlags() {
		if bit, ok := mountFlags[f]; ok {
			flags |= bit
		} else {
			other = append(other, f)
		}
	}
	source, fstype := "", ""
	switch m.store.kind {
	case Directory:
		source, flags = m.store.data(v.ID), flags|unix.MS_BIND
	case Tmpfs:
		source, fstype = "csitest-"+v.ID, "tmpfs"
		other = append(other, "size="+strconv.FormatInt(v.Bytes, 10))
	case Loop:
		device, err := m.store.attach(v.ID)
		if err != nil {
			return internal(err)
		}
		source, fstype = device, "ext4"
	}
	if err := within(); err != nil {
		return err
	}
	if mounted(at) {
		return nil
	}
	if err := unix.Mount(source, at, fstype, flags, strings.Join(other, ",")); err != nil {
		return internal(fmt.Errorf("mount %s: %w", at, err))
	}
	if flags&unix.MS_BIND != 0 && flags != unix.MS_BIND {
		if err := unix.Mount("", at, "", flags|unix.MS_REMOUNT, ""); err != nil {
			return internal(fmt.Errorf("remount %s: %w", at, err))
		}
	}
	if gid, err := strconv.Atoi(c.GetVolumeMountGroup()); err == nil {
		return internal(os.Chown(at, -1, gid))
	}
	return nil
}

// unstage undoes stage, or what there is of it.
func (m mounts) unstage(v *Volume, at string, within func() error) error {
	if err := unmount(at); err != nil {
		return internal(err)
	}
	if err := within(); err != nil {
		return err
	}
	return internal(m.store.detach(v.ID))
}

// publish makes a volume be there for a pod.
func (m mounts) publish(v *Volume, in *csi.NodePublishVolumeRequest, within func() error) error {
	at, from := in.GetTargetPath(), in.GetStagingTargetPath()
	c := in.GetVolumeCapability()
	if c.GetBlock() != nil {
		if err := m.needImage(v); err != nil {
			return internal(err)
		}
		device, err := m.store.attach(v.ID)
		if err != nil {
			return internal(err)
		}
		f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return internal(err)
		}
		_ = f.Close()
		return m.bind(device, at, false, within) // that a device is read-only is not the mount's to say
	}
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return internal(err)
	}
	if v.Ephemeral || !m.judge.can(stages) {
		if err := m.mount(v, at, c.GetMount(), within); err != nil || !in.GetReadonly() {
			return err
		}
		return internal(unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	if !mounted(from) {
		return m.judge.wrong(codes.Internal, "NodePublishVolume of %s: somebody has unmounted %s", v.ID, from)
	}
	return m.bind(from, at, in.GetReadonly(), within)
}

func (m mounts) bind(from, at string, readonly bool, within func() error) error {
	if err := within(); err != nil {
		return err
	}
	if !mounted(at) {
		if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
			return internal(fmt.Errorf("bind %s: %w", at, err))
		}
	}
	if !readonly {
		return nil
	}
	return internal(unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// unpublish undoes publish, or what there is of it. It never removes anything but an empty directory or file.
func (m mounts) unpublish(id, at string, within func() error) error {
	if err := unmount(at); err != nil {
		return internal(err)
	}
	if err := within(); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return internal(err)
	}
	v := m.ledger.volume(id)
	if v == nil || v.Stage != nil || len(v.Targets) > 1 || len(v.Targets) == 1 && v.Targets[at] == nil {
		return nil
	}
	return internal(m.store.detach(id))
}

// enlarge makes what a volume is kept in larger.
func (m mounts) enlarge(v *Volume, bytes int64) error {
	if v.Block || m.store.kind == Loop {
		if err := unix.Truncate(m.store.image(v.ID), bytes); err != nil {
			return fmt.Errorf("enlarge image: %w", err)
		}
	}
	m.ledger.change(v.ID, func(v *Volume) { v.Bytes = bytes })
	return nil
}

// fill has the file system, or the device, of a volume be as large as what it is kept in.
func (m mounts) fill(v *Volume, at string) error {
	switch {
	case v.Block:
		return m.store.grow(v.ID)
	case m.store.kind == Tmpfs:
		data := fmt.Sprintf("size=%d", m.ledger.volume(v.ID).Bytes)
		if err := unix.Mount("", at, "", unix.MS_REMOUNT, data); err != nil {
			return fmt.Errorf("remount %s: %w", at, err)
		}
	case m.store.kind == Loop:
		if err := m.store.grow(v.ID); err != nil {
			return err
		}
		for _, device := range loops(m.store.image(v.ID)) {
			if out, err := exec.Command("resize2fs", device).CombinedOutput(); err != nil {
				return fmt.Errorf("enlarge file system: %w: %s", err, out)
			}
		}
	}
	return nil
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

func mounted(at string) bool {
	all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(at))
	return err == nil && len(all) > 0
}

// unmount unmounts all that is mounted at a path.
func unmount(at string) error {
	for mounted(at) {
		if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}
