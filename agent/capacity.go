package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/internal/disk"
)

// capacity is what the machine has. storage is a directory on the disk that pods share, "" when that is not divided.
func capacity(memory int64, storage string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
	if n, err := maxTasks(); err == nil {
		out[config.PidResource] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	if storage != "" {
		size, err := sizeOf(storage)
		if err != nil {
			return nil, err
		}
		out[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(size, resource.BinarySI)
	}
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return nil, fmt.Errorf("find huge pages: %w", err)
	}
	for _, dir := range dirs {
		kb, err1 := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		n, err2 := readInt(filepath.Join(dir, "nr_hugepages"))
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("read huge pages: %w", err)
		}
		if n > 0 {
			size := resource.NewQuantity(kb<<10, resource.BinarySI)
			out[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(n*kb<<10, resource.BinarySI)
		}
	}
	return out, nil
}

// sizeOf is the size in bytes of the file system that a directory is on, or will be on when it is made.
func sizeOf(dir string) (int64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks) * st.Bsize, nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return 0, fmt.Errorf("find size of disk: %w", &os.PathError{Op: "statfs", Path: dir, Err: err})
		}
		dir = filepath.Dir(dir)
	}
}

// maxTasks is how many tasks the machine can have: as many as have numbers, and as many as it wants to have.
func maxTasks() (int64, error) {
	a, err1 := readInt("/proc/sys/kernel/pid_max")
	b, err2 := readInt("/proc/sys/kernel/threads-max")
	return min(a, b), errors.Join(err1, err2)
}

func readInt(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
}

// swapTotal is the node's swap in bytes.
func swapTotal() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == "SwapTotal:" {
			kib, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// groupTree opens the groups of the pods, with the driver, the choices and the limits of the node.
func groupTree(c config.Config, memory int64) (*cgroups.Hierarchy, *kube.Tree, config.Division, error) {
	h, driver, err := openDriver(c.Place)
	if err != nil {
		return nil, nil, config.Division{}, err
	}
	storage := c.RootDir
	if !c.LocalStorage {
		storage = ""
	}
	have, err := capacity(memory, storage)
	if err != nil {
		return nil, nil, config.Division{}, err
	}
	div, err := c.Divide(have, c.Managers.ReservedCPUs)
	if err != nil {
		return nil, nil, div, err
	}
	opts, err := groupOptions(c, h, div, memory)
	if err != nil {
		return nil, nil, div, err
	}
	tree := kube.NewTree(h, c.CgroupRoot).WithDriver(driver).WithOptions(opts)
	if c.Enforces(config.EnforcePods) {
		tree = tree.WithLimits(nodeLimits(div.Enforced, h))
	} else {
		tree = tree.WithLimits(kube.NodeLimits{MilliCPU: div.Enforced.Cpu().MilliValue()})
	}
	return h, tree, div, nil
}

func openDriver(p config.Place) (*cgroups.Hierarchy, kube.Driver, error) {
	h, err := cgroups.Open(cgroups.DefaultMount)
	if err != nil {
		return nil, nil, fmt.Errorf("open cgroups: %w", err)
	}
	if p.CgroupDriver != cgroups.DriverSystemd {
		return h, kube.Cgroupfs(h), nil
	}
	s, err := systemd.Open(h)
	return h, s, err
}

func groupOptions(c config.Config, h *cgroups.Hierarchy, div config.Division, memory int64) (kube.Options, error) {
	reserved, err := c.QoSReservedMemory()
	if err != nil {
		return kube.Options{}, err
	}
	o := kube.Options{
		NoCPUQuota: !c.CPUQuota, PeriodUs: uint64(c.CPUQuotaPeriod.Microseconds()), PodPids: c.PodMaxPids,
		Unified: h.Mode() == cgroups.Unified, WholePercent: c.CgroupDriver == cgroups.DriverSystemd,
		MemoryQoS: c.MemoryQoS, ThrottlingFactor: c.ThrottlingFactor, NodeMemory: div.Allocatable.Memory().Value(),
		HostMemory: memory, NodeSwap: swapTotal(), OOMGroup: kube.OOMGroup(c.OOMGroup), QoSReserved: reserved,
	}
	if h.SwapAccounted() {
		o.Swap = kube.SwapBehavior(c.Swap)
	}
	for size := range hugepageLimits(div.Capacity, h) {
		o.PageSizes = append(o.PageSizes, size)
	}
	return o, nil
}

// nodeLimits are a list's resources in the groups' terms.
func nodeLimits(l corev1.ResourceList, h *cgroups.Hierarchy) kube.NodeLimits {
	pids := l[config.PidResource]
	return kube.NodeLimits{
		MilliCPU: l.Cpu().MilliValue(), Memory: l.Memory().Value(), Pids: pids.Value(), Hugepages: hugepageLimits(l, h),
	}
}

func hugepageLimits(l corev1.ResourceList, h *cgroups.Hierarchy) map[string]uint64 {
	out := map[string]uint64{}
	for name, q := range l {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok && h.Dir("hugetlb", "/") != "" {
			if k, ok := kube.PageSize(size); ok {
				out[k] = uint64(q.Value())
			}
		}
	}
	return out
}

// Check says what the machine has against the configuration of an agent, and changes nothing of it: it is asked before
// anything is opened, so that a start that is refused leaves all as it was.
func Check(c config.Config) error {
	memory, err := hostMemory()
	if err != nil {
		return err
	}
	have, err := capacity(memory, "")
	if err != nil {
		return err
	}
	div, err := c.Divide(have, c.Managers.ReservedCPUs)
	if err != nil {
		return err
	}
	h, err := cgroups.Open(cgroups.DefaultMount)
	if err != nil {
		return fmt.Errorf("open cgroups: %w", err)
	}
	for _, one := range []struct{ what, flag, group string }{
		{config.EnforceSystemReserved, "system-reserved-cgroup", c.SystemReservedCgroup},
		{config.EnforceKubeReserved, "kube-reserved-cgroup", c.KubeReservedCgroup},
	} {
		if c.Enforces(one.what) && !h.Exists(one.group) {
			return fmt.Errorf("--%s %s: there is no such group: %w", one.flag, one.group, fs.ErrNotExist)
		}
	}
	p, err := pinningConfig(&c, div)
	if err != nil || !p.Enabled() {
		return err
	}
	if p.Machine, err = topology.Read("/"); err != nil {
		return err
	}
	return pinning.Check(p)
}

// reservedFile says, in the root directory, that limits by --qos-reserved were given to the classes of pods.
const reservedFile = "qos-reserved.json"

// settleReserved takes away the limits that an agent before this one has given by --qos-reserved, where this one has no
// such setting. It is written down before the first is given, where the disk can be written; those of somebody else are
// let be.
func settleReserved(c *config.Config, tree *kube.Tree, log *slog.Logger) error {
	file := filepath.Join(c.RootDir, reservedFile)
	if tree.Options().QoSReserved > 0 && c.Enforces(config.EnforcePods) {
		err := record.Write(file, c.QoSReserved)
		if err != nil && !disk.Unwritable(err) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write down --qos-reserved: %w", err)
		}
		if err != nil {
			log.Warn("limits of --qos-reserved stay if the next agent has no such setting", "error", err)
		}
		return nil
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := tree.Unreserve(); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) && !disk.Unwritable(err) {
		return fmt.Errorf("forget --qos-reserved: %w", err)
	}
	return nil
}

// reserveNode limits what is reserved beside the pods to that.
func reserveNode(c *config.Config, tree *kube.Tree, h *cgroups.Hierarchy, div config.Division) error {
	for _, r := range []struct {
		what, group string
		list        corev1.ResourceList
	}{
		{config.EnforceSystemReserved, c.SystemReservedCgroup, div.System},
		{config.EnforceKubeReserved, c.KubeReservedCgroup, div.Kube},
	} {
		if !c.Enforces(r.what) {
			continue
		}
		if err := kube.Reserve(tree, r.group, nodeLimits(r.list, h)); err != nil {
			return err
		}
	}
	return nil
}
