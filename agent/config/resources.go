package config

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/internal/quantity"
)

// Resources is how the node's resources are divided among its pods, and what is kept from them.
type Resources struct {
	SystemReserved map[string]string // by resource: cpu, memory, pid, hugepages-*
	KubeReserved   map[string]string
	Evict          Eviction

	EnforceAllocatable   []string // pods, system-reserved, kube-reserved
	SystemReservedCgroup string
	KubeReservedCgroup   string

	MaxPods      int
	PodsPerCore  int  // 0: MaxPods alone limits
	LocalStorage bool // the node's disk is divided too, and what pods have on it is limited
	PodMaxPids   int64

	CPUQuota       bool
	CPUQuotaPeriod time.Duration

	MemoryQoS        bool
	ThrottlingFactor float64
	Swap             string
	OOMGroup         string
	QoSReserved      map[string]string

	CgroupDrift string // correct, report or off
}

// What is done about a group's value that somebody has changed.
const (
	DriftCorrect = "correct"
	DriftReport  = "report"
	DriftOff     = "off"
)

// What EnforceAllocatable has.
const (
	EnforcePods           = "pods"
	EnforceSystemReserved = "system-reserved"
	EnforceKubeReserved   = "kube-reserved"
)

func defaultResources() Resources {
	return Resources{
		Evict: defaultEviction(), EnforceAllocatable: []string{EnforcePods},
		MaxPods: 500, LocalStorage: true, CPUQuota: true, CPUQuotaPeriod: 100 * time.Millisecond,
		ThrottlingFactor: 0.9, Swap: "NoSwap", OOMGroup: "container", CgroupDrift: DriftCorrect,
	}
}

// AddFlags adds the flags to fs.
func (r *Resources) AddFlags(fs *pflag.FlagSet) {
	fs.StringToStringVar(&r.SystemReserved, "system-reserved", r.SystemReserved,
		"kept for the system, such as cpu=500m,memory=1Gi,pid=1000")
	fs.StringToStringVar(&r.KubeReserved, "kube-reserved", r.KubeReserved,
		"kept for the agent and other daemons of the node, likewise")
	r.Evict.AddFlags(fs)
	fs.StringSliceVar(&r.EnforceAllocatable, "enforce-node-allocatable", r.EnforceAllocatable,
		"groups that are limited: pods, system-reserved, kube-reserved (none: no limits)")
	fs.StringVar(&r.SystemReservedCgroup, "system-reserved-cgroup", r.SystemReservedCgroup,
		"group that system-reserved is enforced on")
	fs.StringVar(&r.KubeReservedCgroup, "kube-reserved-cgroup", r.KubeReservedCgroup,
		"group that kube-reserved is enforced on")
	fs.IntVar(&r.MaxPods, "max-pods", r.MaxPods, "pods that this node runs at most")
	fs.IntVar(&r.PodsPerCore, "pods-per-core", r.PodsPerCore,
		"pods that this node runs at most for each of its CPUs, if that is less (0: any number)")
	fs.BoolVar(&r.LocalStorage, "local-storage-capacity-isolation", r.LocalStorage,
		"count ephemeral-storage, and end pods that have more on the disk than their limits and the sizeLimits of their "+
			"emptyDirs")
	fs.Int64Var(&r.PodMaxPids, "pod-max-pids", r.PodMaxPids, "tasks that a pod may have (0: as many as the node)")
	fs.BoolVar(&r.CPUQuota, "cpu-cfs-quota", r.CPUQuota, "enforce CPU limits by quotas")
	fs.DurationVar(&r.CPUQuotaPeriod, "cpu-cfs-quota-period", r.CPUQuotaPeriod, "period of the quotas, 1ms to 1s")
	fs.BoolVar(&r.MemoryQoS, "memory-qos", r.MemoryQoS,
		"protect requested memory (memory.min) and slow down before the limit (memory.high); cgroup v2 only")
	fs.Float64Var(&r.ThrottlingFactor, "memory-throttling-factor", r.ThrottlingFactor,
		"how far between request and limit memory.high is")
	fs.StringVar(&r.Swap, "swap-behavior", r.Swap,
		"NoSwap or LimitedSwap, which gives Burstable pods swap by their memory requests (cgroup v2 only)")
	fs.StringVar(&r.OOMGroup, "oom-group", r.OOMGroup,
		"what dies with a process that the kernel kills for want of memory: none (it alone), container or pod (cgroup v2 "+
			"only)")
	fs.StringToStringVar(&r.QoSReserved, "qos-reserved", r.QoSReserved,
		"part of the requests that pods of lower classes may not use, such as memory=50%")
	fs.StringVar(&r.CgroupDrift, "cgroup-drift", r.CgroupDrift,
		"what to do when somebody changes a value of a pod's group: correct, report or off")
}

// Complete says what is wrong with the settings.
func (r *Resources) Complete() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for flag, m := range map[string]map[string]string{
		"system-reserved": r.SystemReserved,
		"kube-reserved":   r.KubeReserved,
	} {
		if _, err := reserved(m); err != nil {
			add("--%s: %w", flag, err)
		}
	}
	errs = append(errs, r.Evict.complete())
	for _, e := range r.EnforceAllocatable {
		switch {
		case !slices.Contains([]string{EnforcePods, EnforceSystemReserved, EnforceKubeReserved, "none"}, e):
			add("--enforce-node-allocatable %q: must be pods, system-reserved, kube-reserved or none", e)
		case e == EnforceSystemReserved && !isGroup(r.SystemReservedCgroup):
			add("--enforce-node-allocatable system-reserved needs --system-reserved-cgroup, a clean path below /")
		case e == EnforceKubeReserved && !isGroup(r.KubeReservedCgroup):
			add("--enforce-node-allocatable kube-reserved needs --kube-reserved-cgroup, a clean path below /")
		}
	}
	if r.MaxPods < 1 || r.PodsPerCore < 0 || r.PodMaxPids < 0 {
		add("--max-pods must be at least 1, and --pods-per-core and --pod-max-pids not negative")
	}
	if r.CPUQuotaPeriod < time.Millisecond || r.CPUQuotaPeriod > time.Second {
		add("--cpu-cfs-quota-period %s: the kernel takes 1ms to 1s", r.CPUQuotaPeriod)
	}
	if r.ThrottlingFactor <= 0 || r.ThrottlingFactor > 1 {
		add("--memory-throttling-factor %v: must be above 0 and at most 1", r.ThrottlingFactor)
	}
	if _, err := r.QoSReservedMemory(); err != nil {
		errs = append(errs, err)
	}
	for _, one := range []struct {
		flag, value string
		allowed     []string
	}{
		{"swap-behavior", r.Swap, []string{"NoSwap", "LimitedSwap"}},
		{"oom-group", r.OOMGroup, []string{"none", "container", "pod"}},
		{"cgroup-drift", r.CgroupDrift, []string{DriftCorrect, DriftReport, DriftOff}},
	} {
		errs = append(errs, oneOf(one.flag, one.value, one.allowed))
	}
	return errors.Join(errs...)
}

func isGroup(p string) bool { return path.IsAbs(p) && path.Clean(p) == p && p != "/" }

// Enforces says whether a group is to be limited.
func (r *Resources) Enforces(what string) bool { return slices.Contains(r.EnforceAllocatable, what) }

// QoSReservedMemory is the percentage of --qos-reserved memory.
func (r *Resources) QoSReservedMemory() (int64, error) {
	for k, v := range r.QoSReserved {
		n, err := strconv.ParseInt(strings.TrimSuffix(v, "%"), 10, 64)
		if k != string(corev1.ResourceMemory) || !strings.HasSuffix(v, "%") || err != nil || n < 0 || n > 100 {
			return 0, fmt.Errorf("--qos-reserved %s=%s: must be memory=, 0%% to 100%%", k, v)
		}
		return n, nil
	}
	return 0, nil
}

// PidResource is how reservations call the number of tasks.
const PidResource corev1.ResourceName = "pid"

func reserved(m map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for k, v := range m {
		q, err := quantity.Parse(v)
		if err != nil {
			return nil, fmt.Errorf("%s=%.40s is not a quantity: %w", k, v, err)
		}
		if q.Sign() < 0 {
			return nil, fmt.Errorf("%s=%.40s is not a quantity: must be 0 or more", k, v)
		}
		switch name := corev1.ResourceName(k); {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			name == PidResource,
			strings.HasPrefix(k, corev1.ResourceHugePagesPrefix):
			out[name] = q
		default:
			return nil, fmt.Errorf("%s is not a resource that can be reserved", k)
		}
	}
	return out, nil
}

func newBytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// Division is what a node of some capacity gives to its pods.
type Division struct {
	Capacity corev1.ResourceList
	System   corev1.ResourceList // reserved
	Kube     corev1.ResourceList
	Eviction corev1.ResourceList // what eviction keeps free of memory and disk
	Enforced corev1.ResourceList // what the pods' group is limited to: capacity less what is reserved
	// Allocatable is what pods may request: that, less what eviction keeps free, and of memory less what is in huge
	// pages, which nobody gets as memory.
	Allocatable corev1.ResourceList
}

// Divide divides the capacity. The CPUs of the list are the node's own, in place of the cpu that is reserved.
func (r *Resources) Divide(capacity corev1.ResourceList, reservedCPUs string) (Division, error) {
	d := Division{Capacity: capacity, Enforced: corev1.ResourceList{}, Allocatable: corev1.ResourceList{}}
	var err1, err2 error
	d.System, err1 = reserved(r.SystemReserved)
	d.Kube, err2 = reserved(r.KubeReserved)
	var err3 error
	d.Eviction, err3 = r.Evict.reserved(capacity)
	cpus, err4 := parseCPUs(reservedCPUs)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return d, fmt.Errorf("divide node: %w", err)
	}
	if n := cpus.Size(); n > 0 {
		delete(d.Kube, corev1.ResourceCPU)
		d.System[corev1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	for name, q := range capacity {
		left := q.DeepCopy()
		left.Sub(d.System[name])
		left.Sub(d.Kube[name])
		if left.Sign() < 0 {
			return d, fmt.Errorf("divide node: it has %s of %s, of which %s for the system and %s for daemons cannot be kept",
				q.String(), name,
				quantityText(d.System, name), quantityText(d.Kube, name))
		}
		d.Enforced[name] = left
		a := left.DeepCopy()
		if kept, ok := d.Eviction[name]; ok {
			a.Sub(kept)
			if a.Sign() < 0 {
				a = *newBytes(0)
			}
		}
		d.Allocatable[name] = a
	}
	lessHugePages(capacity, d.Allocatable)
	pods := int64(r.MaxPods)
	if r.PodsPerCore > 0 {
		pods = min(pods, int64(r.PodsPerCore)*capacity.Cpu().Value())
	}
	d.Allocatable[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	return d, nil
}

// lessHugePages takes the memory that is in huge pages from what can be asked for.
func lessHugePages(capacity, allocatable corev1.ResourceList) {
	left, has := allocatable[corev1.ResourceMemory]
	if !has {
		return
	}
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			left.Sub(q)
		}
	}
	if left.Sign() < 0 {
		left = *newBytes(0)
	}
	allocatable[corev1.ResourceMemory] = left
}

func quantityText(l corev1.ResourceList, name corev1.ResourceName) string {
	q := l[name]
	return q.String()
}

// CheckReservedMemory says whether what --reserved-memory keeps on all NUMA nodes together is what the node keeps, as
// it has to be by the Memory Manager's documentation: with less on the nodes containers would be promised memory that
// others keep, with more the node would take in pods that no NUMA node has memory for.
func (d Division) CheckReservedMemory(reserved []pinning.NodeMemory) error {
	sums := corev1.ResourceList{}
	for _, n := range reserved {
		for name, q := range n.Limits {
			sum := sums[name]
			sum.Add(q)
			sums[name] = sum
		}
	}
	var errs []error
	for _, name := range d.memoryKinds(sums) {
		want := d.System[name].DeepCopy()
		want.Add(d.Kube[name])
		how := fmt.Sprintf("--system-reserved %s + --kube-reserved %s", quantityText(d.System, name),
			quantityText(d.Kube, name))
		if name == corev1.ResourceMemory {
			evict := d.Eviction.Memory()
			want.Add(*evict)
			how += " + --eviction-hard " + evict.String()
		}
		if sum := sums[name]; sum.Cmp(want) != 0 {
			errs = append(errs, fmt.Errorf("--reserved-memory: the total of %s is %s, but the node keeps %s (%s)", name,
				sum.String(), want.String(), how))
		}
	}
	return errors.Join(errs...)
}

// memoryKinds are the kinds of memory that are reserved one way or another, sorted.
func (d Division) memoryKinds(more corev1.ResourceList) []corev1.ResourceName {
	kinds := map[corev1.ResourceName]bool{corev1.ResourceMemory: true}
	for _, l := range []corev1.ResourceList{d.System, d.Kube, more} {
		for name := range l {
			if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				kinds[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}
