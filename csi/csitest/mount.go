package csitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultBytes = 32 << 20
	// canary is a file in each volume that is a directory. Where it is gone, somebody has removed what was in the
	// volume.
	canary = ".csitest"
)

// store is what volumes are kept in: a directory each, with the files, or with an image that a loop device has.
type store struct {
	dir  string
	kind Kind
	room sync.Mutex // held from the look at what is free until it is taken
}

func (s *store) home(id string) string  { return filepath.Join(s.dir, "volumes", id) }
func (s *store) image(id string) string { return filepath.Join(s.home(id), "image") }

// Data is where the files of a volume of the kind [Directory] are, for tests that look at them.
func (d *Driver) Data(id string) string { return d.store.data(id) }

func (s *store) data(id string) string { return filepath.Join(s.home(id), "data") }

// make makes what a volume is kept in, with the content of another directory of the driver's, if any.
func (s *store) make(v *Volume, from string) error {
	if strings.ContainsRune(v.ID, '/') || v.ID == "" {
		return fmt.Errorf("make volume: %q is no name of a directory", v.ID)
	}
	if err := os.MkdirAll(s.home(v.ID), 0o755); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	if v.Block || s.kind == Loop {
		return s.makeImage(v, from)
	}
	if s.kind != Directory {
		return nil
	}
	if from != "" {
		if err := os.CopyFS(s.data(v.ID), os.DirFS(from)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("copy volume: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(s.data(v.ID), 0o777); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	return os.WriteFile(filepath.Join(s.data(v.ID), canary), []byte(v.ID+"\n"), 0o644)
}

func (s *store) makeImage(v *Volume, from string) error {
	image := s.image(v.ID)
	if _, err := os.Stat(image); err == nil {
		return nil
	}
	if from != "" {
		return copyFile(image, from)
	}
	if err := os.WriteFile(image+".new", nil, 0o600); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := os.Truncate(image+".new", v.Bytes); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if !v.Block {
		if out, err := exec.Command("mkfs.ext4", "-q", "-F", image+".new").CombinedOutput(); err != nil {
			return fmt.Errorf("format image: %w: %s", err, out)
		}
	}
	return os.Rename(image+".new", image)
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	return nil
}

// stage makes a volume be there for the node.
func (d *Driver) stage(ctx context.Context, v *Volume, at string, c *csi.VolumeCapability) error {
	if c.GetBlock() != nil {
		if err := d.needImage(v); err != nil {
			return internal(err)
		}
		if _, err := d.store.attach(v.ID); err != nil {
			return internal(err)
		}
		return d.happen(ctx, Within)
	}
	return d.mount(ctx, v, at, c.GetMount())
}

// needImage gives a volume that was not made for it something to be a block device.
func (d *Driver) needImage(v *Volume) error {
	if _, err := os.Stat(d.store.image(v.ID)); err == nil {
		return nil
	}
	v.Block = true
	d.ledger.change(v.ID, func(v *Volume) { v.Block = true })
	return d.store.makeImage(v, "")
}

var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"sync": unix.MS_SYNCHRONOUS, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// mount mounts the file system of a volume.
func (d *Driver) mount(ctx context.Context, v *Volume, at string, c *csi.VolumeCapability_MountVolume) error {
	if d.opts.Kind == Directory {
		if _, err := os.Stat(filepath.Join(d.Data(v.ID), canary)); err != nil && v.Source == "" {
			d.ledger.violation("what was in the volume %s is gone: %v", v.ID, err)
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
	switch d.opts.Kind {
	case Directory:
		source, flags = d.Data(v.ID), flags|unix.MS_BIND
	case Tmpfs:
		source, fstype = "csitest-"+v.ID, "tmpfs"
		other = append(other, "size="+strconv.FormatInt(v.Bytes, 10))
	case Loop:
		device, err := d.store.attach(v.ID)
		if err != nil {
			return internal(err)
		}
		source, fstype = device, "ext4"
	}
	if err := d.happen(ctx, Within); err != nil {
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
func (d *Driver) unstage(ctx context.Context, v *Volume, at string) error {
	if err := unmount(at); err != nil {
		return internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return err
	}
	return internal(d.store.detach(v.ID))
}

// publish makes a volume be there for a pod.
func (d *Driver) publish(ctx context.Context, v *Volume, in *csi.NodePublishVolumeRequest) error {
	at, from := in.GetTargetPath(), in.GetStagingTargetPath()
	c := in.GetVolumeCapability()
	if c.GetBlock() != nil {
		if err := d.needImage(v); err != nil {
			return internal(err)
		}
		device, err := d.store.attach(v.ID)
		if err != nil {
			return internal(err)
		}
		f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return internal(err)
		}
		_ = f.Close()
		return d.bind(ctx, device, at, false) // that a device is read-only is not the mount's to say
	}
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return internal(err)
	}
	if v.Ephemeral || !d.judge.can(stages) {
		if err := d.mount(ctx, v, at, c.GetMount()); err != nil || !in.GetReadonly() {
			return err
		}
		return internal(unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	if !mounted(from) {
		return d.judge.wrong(codes.Internal, "NodePublishVolume of %s: somebody has unmounted %s", v.ID, from)
	}
	return d.bind(ctx, from, at, in.GetReadonly())
}

func (d *Driver) bind(ctx context.Context, from, at string, readonly bool) error {
	if err := d.happen(ctx, Within); err != nil {
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
func (d *Driver) unpublish(ctx context.Context, id, at string) error {
	if err := unmount(at); err != nil {
		return internal(err)
	}
	if err := d.happen(ctx, Within); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return internal(err)
	}
	v := d.ledger.volume(id)
	if v == nil || v.Stage != nil || len(v.Targets) > 1 || len(v.Targets) == 1 && v.Targets[at] == nil {
		return nil
	}
	return internal(d.store.detach(id))
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

// Reboot unmounts all that a reboot would, and forgets where volumes are.
func (d *Driver) Reboot() error {
	var at []string
	ids := map[string]bool{}
	for id, v := range d.State().Volumes {
		ids[id] = true
		if v.Stage != nil {
			at = append(at, v.Stage.Path)
		}
		for path := range v.Targets {
			at = append(at, path)
		}
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !slices.ContainsFunc(d.opts.Roots, func(root string) bool { return strings.HasPrefix(m.Mountpoint, root+"/") }), false
	})
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range all {
		at = append(at, m.Mountpoint)
	}
	slices.Sort(at)
	slices.Reverse(at)
	var errs []error
	for _, path := range at {
		errs = append(errs, unmount(path))
	}
	for id := range ids {
		errs = append(errs, d.store.detach(id))
	}
	d.ledger.update(func(*State) { d.ledger.forgetPlaces() })
	return errors.Join(errs...)
}
