package plain

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	lib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"golang.org/x/sys/unix"
)

// makeTrees makes the group in all hierarchies of v1. The library makes the same of it, but it reads the CPUs of all
// groups above for each container, and opens a file anew for each rule of devices: two hundred system calls more.
func (s *Start) makeTrees(r *lib.Resources) error {
	paths := map[string]string{}
	for _, t := range s.machine.Trees {
		if t.Unified {
			paths[""] = t.Mount + s.group
			continue
		}
		for _, c := range t.Controllers {
			paths[c] = t.Mount + s.group
		}
	}
	if paths["devices"] == "" {
		return errors.New("make groups: the machine has none for devices")
	}
	m, err := fs.NewManager(&lib.Cgroup{Path: s.group, Resources: r}, paths)
	if err == nil && !s.makeDirectories() {
		err = m.Apply(nobody)
	}
	if err == nil {
		err = share(paths["cpu"], r)
	}
	if err == nil {
		// Or the library says what is wrong, or finds a way from what is permitted there already.
		r.SkipDevices = permit(paths["devices"]) == nil
		err = m.Set(r)
	}
	if err != nil {
		return fmt.Errorf("make groups: %w", err)
	}
	return nil
}

// makeDirectories makes the group's directories where those above are there, and the kernel gives CPUs to the new one,
// as it does in the group of a pod. It says whether that was so: the rest is left to the library.
func (s *Start) makeDirectories() bool {
	for _, t := range s.machine.Trees {
		dir := t.Mount + s.group
		if err := unix.Mkdir(dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return false
		}
		if slices.Contains(t.Controllers, "cpuset") && (empty(dir+"/cpuset.cpus") || empty(dir+"/cpuset.mems")) {
			return false
		}
	}
	return true
}

// empty says that a setting has no value, or cannot be read.
func empty(file string) bool {
	fd, err := again(func() (int, error) { return unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	var value [2]byte // a new line is no value
	n, err := again(func() (int, error) { return unix.Read(fd, value[:]) })
	return err != nil || n < len(value)
}

// permitted are the rules of [defaults] as the kernel reads them, one a write.
var permitted = sync.OnceValue(func() [][]byte {
	var out [][]byte
	for _, d := range defaults() {
		out = append(out, []byte(d.CgroupString()))
	}
	return out
})

// permit lets a group use the devices of all containers, and no others. The kernel answers for each rule.
func permit(dir string) error {
	if err := write(dir+"/devices.deny", []byte("a")); err != nil {
		return err
	}
	return write(dir+"/devices.allow", permitted()...)
}

// The kernel takes more and less than that for the nearest that it has.
const leastShares, mostShares = 2, 1 << 18

// share writes the share of CPU, which every container has. What the kernel would change is left to the library, which
// reads back what it has written.
func share(dir string, r *lib.Resources) error {
	if dir == "" || r.CpuShares < leastShares || r.CpuShares > mostShares {
		return nil
	}
	if err := write(dir+"/cpu.shares", strconv.AppendUint(nil, r.CpuShares, 10)); err != nil {
		return err
	}
	r.CpuShares = 0
	return nil
}

// write writes values to a file of a group that is there, one after the other.
func write(file string, values ...[]byte) error {
	fd, err := again(func() (int, error) { return unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	defer unix.Close(fd)
	for _, v := range values {
		if _, err := again(func() (int, error) { return unix.Write(fd, v) }); err != nil {
			return fmt.Errorf("write %q to %s: %w", v, file, err)
		}
	}
	return nil
}

// again makes a system call until no signal interrupts it.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
