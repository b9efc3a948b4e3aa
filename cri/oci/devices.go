package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func devices(in *Input, s *specs.Spec) error {
	if security(in.Container).GetPrivileged() {
		s.Linux.Devices = slices.Clone(in.Host.Devices)
		// Those of its own may be in places of their own.
		for _, dev := range slices.Concat(in.Devices...) {
			same := func(d specs.LinuxDevice) bool { return d.Path == dev.Path }
			s.Linux.Devices = append(slices.DeleteFunc(s.Linux.Devices, same), dev)
		}
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		return nil
	}
	// Whatever is not allowed below, libcontainer's own handful apart, is denied.
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for i, d := range in.Container.GetDevices() {
		if i >= len(in.Devices) {
			return fmt.Errorf("device %s was not looked up", d.GetHostPath())
		}
		access := d.GetPermissions()
		if access == "" {
			access = "rwm"
		}
		if strings.Trim(access, "rwm") != "" {
			return fmt.Errorf("device %s: permissions %q are not of r, w and m", d.GetHostPath(), access)
		}
		for _, dev := range in.Devices[i] {
			s.Linux.Devices = append(s.Linux.Devices, dev)
			rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: dev.Type, Major: &dev.Major, Minor: &dev.Minor, Access: access})
		}
	}
	s.Linux.Resources.Devices = rules
	return nil
}

// LoadDevice returns the device node at host, or all below it when it is a directory, as they are to be at path in the
// container.
func LoadDevice(host, path string) ([]specs.LinuxDevice, error) {
	real, err := filepath.EvalSymlinks(host)
	if err != nil {
		return nil, fmt.Errorf("find device: %w", err)
	}
	if path == "" {
		path = host
	}
	fi, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("find device: %w", err)
	}
	if fi.IsDir() {
		return walkDevices(real, path)
	}
	d, ok, err := node(real, path)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s is not a device", host)
	}
	return []specs.LinuxDevice{d}, nil
}

// HostDevices returns all device nodes of /dev but the terminals and shared memory, which a container has its own of.
func HostDevices() ([]specs.LinuxDevice, error) { return walkDevices("/dev", "/dev") }

func walkDevices(root, as string) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			// Nodes come and go while one looks.
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			switch p {
			case "/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/.lxc", "/dev/.lxd-mounts", "/dev/.udev":
				return filepath.SkipDir
			}
			return nil
		}
		if p == "/dev/console" || p == "/dev/ptmx" || d.Type()&fs.ModeDevice == 0 {
			return nil
		}
		dev, ok, err := node(p, filepath.Join(as, strings.TrimPrefix(p, root)))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if ok {
			out = append(out, dev)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list devices of %s: %w", root, err)
	}
	return out, nil
}

func node(host, path string) (specs.LinuxDevice, bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(host, &st); err != nil {
		return specs.LinuxDevice{}, false, &fs.PathError{Op: "lstat", Path: host, Err: err}
	}
	kind := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		kind = "b"
	case unix.S_IFCHR:
		kind = "c"
	default:
		return specs.LinuxDevice{}, false, nil
	}
	mode := os.FileMode(st.Mode &^ unix.S_IFMT)
	return specs.LinuxDevice{
		Path: path, Type: kind, FileMode: &mode, UID: &st.Uid, GID: &st.Gid,
		Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
	}, true, nil
}
