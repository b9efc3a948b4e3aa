// Package class knows the classes of block I/O and of cache and memory bandwidth (RDT), by whose names pods and plugins
// ask for settings that are the administrator's.
//
// The classes of block I/O are those of a file in the format that containerd and CRI-O take. Those of RDT are the
// groups that the administrator has made in resctrl, the kernel's file system for them.
package class

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

// Resctrl is where the kernel's file system for RDT is mounted.
const Resctrl = "/sys/fs/resctrl"

// ErrUnknown says that there is no class of that name.
var ErrUnknown = errors.New("no such class")

// Classes are those of a node.
type Classes struct {
	file    string
	blockIO map[string][]devices
	resctrl string
}

// Open reads the classes of block I/O out of a file; "" = there are none.
func Open(file string) (*Classes, error) {
	c := &Classes{file: file, resctrl: Resctrl}
	if file == "" {
		return c, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read classes of block I/O: %w", err)
	}
	if c.blockIO, err = parse(b); err != nil {
		return nil, fmt.Errorf("read classes of block I/O: %s: %w", file, err)
	}
	return c, nil
}

// BlockIO is what a class of block I/O means for the devices that there are now.
func (c *Classes) BlockIO(name string) (*specs.LinuxBlockIO, error) {
	if c.file == "" {
		return nil, fmt.Errorf("block I/O class %q: %w: this runtime is given no file of classes (--blockio-config)", name, ErrUnknown)
	}
	class, ok := c.blockIO[name]
	if !ok {
		return nil, fmt.Errorf("block I/O class %q: %w: %s has %s", name, ErrUnknown, c.file, c.names())
	}
	out := &specs.LinuxBlockIO{}
	for i, d := range class {
		if err := d.add(out); err != nil {
			return nil, fmt.Errorf("block I/O class %q: %s: Classes.%s[%d]: %w", name, c.file, name, i, err)
		}
	}
	return out, nil
}

func (c *Classes) names() string {
	if len(c.blockIO) == 0 {
		return "none"
	}
	var all []string
	for name := range c.blockIO {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// RDT is what a class of RDT means: to run in that group of resctrl.
func (c *Classes) RDT(name string) (*specs.LinuxIntelRdt, error) {
	if err := c.RDTReady(); err != nil {
		return nil, fmt.Errorf("RDT class %q: %w", name, err)
	}
	// Names of groups are names of directories beside the kernel's own.
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") || slices.Contains([]string{"info", "mon_groups", "mon_data"}, name) {
		return nil, fmt.Errorf("RDT class %q: this is not the name of a group in %s", name, c.resctrl)
	}
	switch st, err := os.Stat(filepath.Join(c.resctrl, name, "schemata")); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("RDT class %q: %w: make the group first (mkdir %s, then write its schemata)", name, ErrUnknown, filepath.Join(c.resctrl, name))
	case err != nil:
		return nil, fmt.Errorf("RDT class %q: %w", name, err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("RDT class %q: %s is no group", name, filepath.Join(c.resctrl, name))
	}
	return &specs.LinuxIntelRdt{ClosID: name}, nil
}

// RDTReady says what is missing for RDT, if anything is.
func (c *Classes) RDTReady() error {
	switch _, err := os.Stat(filepath.Join(c.resctrl, "schemata")); {
	case errors.Is(err, fs.ErrNotExist):
		if b, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(b), "\tresctrl\n") {
			return errors.New("this machine has no resctrl: it takes a CPU with RDT, QoS or MPAM and a kernel that is built for it (CONFIG_X86_CPU_RESCTRL)")
		}
		return fmt.Errorf("resctrl is not mounted: mount -t resctrl resctrl %s", c.resctrl)
	case err != nil:
		return err
	}
	return nil
}

// Apply puts the classes into a specification that a container's annotations, or else its pod's, name.
func (c *Classes) Apply(s *specs.Spec, container string, own, pod map[string]string) error {
	if name := named("blockio", container, own, pod); name != "" {
		b, err := c.BlockIO(name)
		if err != nil {
			return err
		}
		s.Linux.Resources.BlockIO = b
	}
	if name := named("rdt", container, own, pod); name != "" {
		r, err := c.RDT(name)
		if err != nil {
			return err
		}
		s.Linux.IntelRdt = r
	}
	return nil
}

// named finds the name of a class where other runtimes look for it. What is said of the container itself counts before
// what its pod says of it, and that before what the pod says of all. An empty name is none.
func named(kind, container string, own, pod map[string]string) string {
	if name, ok := own["io.kubernetes.cri."+kind+"-class"]; ok {
		return name
	}
	if name, ok := pod[kind+".resources.beta.kubernetes.io/container."+container]; ok {
		return name
	}
	return pod[kind+".resources.beta.kubernetes.io/pod"]
}

// number is a device's, by which the kernel knows it.
func number(path string) (major, minor int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, fmt.Errorf("%s is no block device", path)
	}
	return int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)), nil
}
