package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// ErrRunning says that another agent has the run directory.
var ErrRunning = errors.New("another agent runs there")

// Lock takes a run directory for this process, until the file is closed or the process ends, however it does.
func Lock(runDir string) (*os.File, error) {
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(runDir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock run directory: %w", err)
	}
	err = flock(f)
	if err == nil {
		// Who has it is for people to read; the lock itself is the kernel's.
		if err = f.Truncate(0); err == nil {
			_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrRunning
		if b, rerr := os.ReadFile(f.Name()); rerr == nil && len(bytes.TrimSpace(b)) > 0 {
			err = fmt.Errorf("%w (process %s)", ErrRunning, bytes.TrimSpace(b))
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock run directory %s: %w", runDir, err)
	}
	return f, nil
}

// lockName is the name of the lock in the run directory.
const lockName = "lock"

// dying is how long a lock is waited for that somebody has.
const dying = 2 * time.Second

// flock takes a lock. A process that an agent was about to execute when it was killed has its files, and its locks with
// them, until it executes: so one that is held may be nobody's in a moment. A wait that the kernel ends could not be
// given up.
func flock(f *os.File) error {
	for end := time.Now().Add(dying); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// lockGroups takes the groups of pods for this process. Two agents that share them would each remove the other's pods
// as ones that nobody wants. The directory itself is locked, so that there is nothing to be left behind.
func lockGroups(h *cgroups.Hierarchy, tree *kube.Tree, root string) (*os.File, error) {
	dirs := h.Dirs(tree.ClassPath(corev1.PodQOSGuaranteed))
	if len(dirs) == 0 {
		return nil, fmt.Errorf("lock groups of pods: %w", fs.ErrNotExist)
	}
	f, err := os.Open(dirs[0])
	if err != nil {
		return nil, fmt.Errorf("lock groups of pods: %w", err)
	}
	if err := flock(f); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: it has the pods under cgroup %s; --cgroup-root must differ", ErrRunning, root)
		}
		return nil, fmt.Errorf("lock groups of pods: %w", err)
	}
	return f, nil
}

// hostMemory is the memory of the machine in bytes.
func hostMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read memory size: %w", err)
	}
	return parseMemTotal(b)
}

func parseMemTotal(meminfo []byte) (int64, error) {
	for line := range bytes.Lines(meminfo) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == "MemTotal:" {
			kib, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read memory size: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("read memory size: no MemTotal")
}

// nodeIPs returns the node's addresses, at most one of each family: those from which it would reach the world, else the
// first ones that are not its own business only.
func nodeIPs() []string {
	var out []string
	for _, world := range []string{"203.0.113.1:9", "[2001:db8::1]:9"} {
		// A UDP socket that is connected has asked the routing table and sent nothing.
		c, err := net.Dial("udp", world)
		if err != nil {
			continue
		}
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok && a.IP.IsGlobalUnicast() {
			out = append(out, a.IP.String())
		}
		c.Close()
	}
	if len(out) > 0 {
		return out
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return []string{n.IP.String()}
		}
	}
	return []string{"127.0.0.1"}
}
