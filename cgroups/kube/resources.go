package kube

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The kernel's limits of the CPU controller, in v1's terms.
const (
	minShares    = 2
	maxShares    = 262144
	sharesPerCPU = 1024
	minQuota     = 1_000 // microseconds
)

// Shares converts a cpu request in thousandths of a core. No request is the kernel's smallest share, not its default.
func Shares(milliCPU int64) uint64 {
	return uint64(min(max(milliCPU*sharesPerCPU/1000, minShares), maxShares))
}

// Quota converts a cpu limit to microseconds a period. 0 means no limit.
func Quota(milliCPU int64, periodUs uint64) int64 {
	if milliCPU <= 0 {
		return 0
	}
	return max(milliCPU*int64(periodUs)/1000, minQuota)
}

// PodResources are the settings of the pod's own group: requests and limits of all containers by the API's rules
// for init containers and sidecars, pod-level resources over them, overhead on top. A limit is only written when every
// container has one, because a single unlimited container makes the pod unlimited.
func PodResources(pod *corev1.Pod, o Options) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{}}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})

	shares := uint64(minShares)
	if q := QoS(pod); q != corev1.PodQOSBestEffort {
		shares = Shares(requests.Cpu().MilliValue())
		// With a limit and no request the API defaults the request; a pod that was not defaulted must not starve.
		if requests.Cpu().IsZero() && !limits.Cpu().IsZero() && everyLimit(pod, corev1.ResourceCPU) {
			shares = Shares(limits.Cpu().MilliValue())
		}
	}
	out.CPU.Shares = &shares
	if everyLimit(pod, corev1.ResourceCPU) && !o.NoCPUQuota {
		setQuota(out.CPU, limits.Cpu().MilliValue(), o)
	}
	if everyLimit(pod, corev1.ResourceMemory) {
		if v := limits.Memory().Value(); v > 0 {
			out.Memory = &specs.LinuxMemory{Limit: &v}
		}
	}
	if o.PodPids > 0 {
		out.Pids = &specs.LinuxPids{Limit: &o.PodPids}
	}
	out.HugepageLimits = hugepages(limits, o.PageSizes)
	burst(pod, out.CPU)
	ioWeight(pod, out, o.Unified)
	if q := requests.Memory(); o.MemoryQoS && o.Unified && !q.IsZero() {
		set(out, "memory.min", strconv.FormatInt(q.Value(), 10))
	}
	if o.Unified && o.oomGroup(pod) == OOMPod {
		set(out, "memory.oom.group", "1")
	}
	return out
}

func setQuota(cpu *specs.LinuxCPU, milli int64, o Options) {
	quota, period := Quota(milli, o.period()), o.period()
	if quota == 0 {
		return
	}
	if o.WholePercent {
		quota = wholePercent(quota, period)
	}
	cpu.Quota, cpu.Period = &quota, &period
}

// wholePercent rounds a quota up to what systemd can say: hundredths of a CPU.
func wholePercent(quota int64, period uint64) int64 {
	const step = 10_000 // microseconds of a second
	perSecond := (uint64(quota)*1_000_000 + period - 1) / period
	return int64((perSecond + step - 1) / step * step * period / 1_000_000)
}

// everyLimit says whether the pod as a whole is limited: by a pod-level limit, or because each container that runs at
// the same time has one. Init containers count too: while one of them runs it must not exceed what the pod's limit
// says.
func everyLimit(pod *corev1.Pod, name corev1.ResourceName) bool {
	if pod.Spec.Resources != nil && positive(pod.Spec.Resources.Limits, name) {
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !positive(list[i].Resources.Limits, name) {
				return false
			}
		}
	}
	return len(pod.Spec.Containers) > 0
}

// ContainerResources are the settings of one container's group, what CRI calls LinuxContainerResources.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, o Options) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{}}
	requests, limits := c.Resources.Requests, c.Resources.Limits
	request, ok := requests[corev1.ResourceCPU]
	limit, limited := ownOrPodLimit(pod, limits, corev1.ResourceCPU)
	if limited && !ok {
		request = limit // its own, or what the pod as a whole may have: kubelet's share for who asks for nothing
	}
	shares := Shares(request.MilliValue())
	out.CPU.Shares = &shares
	if limited && !o.NoCPUQuota {
		setQuota(out.CPU, limit.MilliValue(), o)
	}
	memory, ok := ownOrPodLimit(pod, limits, corev1.ResourceMemory)
	if ok {
		v := memory.Value()
		out.Memory = &specs.LinuxMemory{Limit: &v}
	}
	out.HugepageLimits = hugepages(limits, o.PageSizes)
	burst(pod, out.CPU)
	o.memoryQoS(out, *requests.Memory(), memory)
	o.setSwap(out, pod, c)
	if o.Unified && o.oomGroup(pod) == OOMContainer {
		set(out, "memory.oom.group", "1")
	}
	return out
}

// ownOrPodLimit: without a limit of its own a container may take what its pod may. Saying so in its own group makes
// throttling and OOM kills speak of this container.
func ownOrPodLimit(pod *corev1.Pod, own corev1.ResourceList, name corev1.ResourceName) (resource.Quantity, bool) {
	if q, ok := quantity(own, name); ok || pod.Spec.Resources == nil {
		return q, ok
	}
	return quantity(pod.Spec.Resources.Limits, name)
}

// hugepages turns limits of "hugepages-2Mi" into the kernel's "2MB". Sizes of the machine that nobody asked for are set
// to none, else such a pod could drain the node's pool.
func hugepages(limits corev1.ResourceList, sizes []string) []specs.LinuxHugepageLimit {
	asked := map[string]uint64{}
	for name, q := range limits {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		if k, ok := PageSize(size); ok {
			asked[k] = uint64(max(q.Value(), 0))
		}
	}
	var out []specs.LinuxHugepageLimit
	for _, s := range append([]string{"64KB", "2MB", "32MB", "512MB", "1GB", "16GB"}, sizes...) {
		if v, ok := asked[s]; ok {
			out = append(out, specs.LinuxHugepageLimit{Pagesize: s, Limit: v})
			delete(asked, s)
		}
	}
	for _, s := range sizes {
		if !listed(out, s) {
			out = append(out, specs.LinuxHugepageLimit{Pagesize: s})
		}
	}
	return out
}

func listed(l []specs.LinuxHugepageLimit, size string) bool {
	for _, h := range l {
		if h.Pagesize == size {
			return true
		}
	}
	return false
}

// PageSize turns the API's "2Mi" into the kernel's "2MB".
func PageSize(s string) (string, bool) {
	for _, u := range []string{"K", "M", "G"} {
		if n, ok := strings.CutSuffix(s, u+"i"); ok && n != "" && strings.Trim(n, "0123456789") == "" {
			return fmt.Sprintf("%s%sB", n, u), true
		}
	}
	return "", false
}

// minLimit is the least memory that a container can be started in. Before it is the container's program, its first
// process is what sets it up, and so is each command that is run in it: of that 2 MiB and more cannot be reclaimed, by
// the kernel's version and without huge pages, and what has less is killed before the program is there.
const minLimit = 3 << 20

// CheckLimits says which limit of a pod the kernel cannot keep a container in. CPU limits have no such minimum: [Quota]
// rounds up.
func CheckLimits(pod *corev1.Pod) error {
	var errs []error
	check := func(of string, l corev1.ResourceList) {
		if q, ok := l[corev1.ResourceMemory]; ok && q.Sign() > 0 && q.Value() < minLimit {
			errs = append(errs, fmt.Errorf("%s: limits.memory is %s, %d bytes: the least that a container can be started in is %d bytes", of, q.String(), q.Value(), minLimit))
		}
	}
	if pod.Spec.Resources != nil {
		check("pod", pod.Spec.Resources.Limits)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			check("container "+list[i].Name, list[i].Resources.Limits)
		}
	}
	return errors.Join(errs...)
}
