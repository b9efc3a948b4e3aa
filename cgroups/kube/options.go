package kube

import (
	"fmt"
	"os"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/cgroups"
)

// Options are the node-wide choices that shape a pod's or container's settings. The zero value is kubelet's default.
type Options struct {
	NoCPUQuota bool   // do not enforce cpu limits
	PeriodUs   uint64 // CFS period, 0 = 100 ms
	// WholePercent rounds quotas up to hundredths of a CPU, which is all that systemd can say, and what runtimes with
	// its driver do: v1 refuses a container more than its pod has.
	WholePercent bool
	PodPids      int64 // tasks a pod may have, 0 = no limit
	PageSizes    []string

	Unified bool // the machine has cgroup v2 only; what v1 has no file for is left out elsewhere

	MemoryQoS        bool    // memory.min from requests, memory.high below limits; v2 only
	ThrottlingFactor float64 // how far between request and limit memory.high is, 0 = 0.9
	NodeMemory       int64   // bytes pods may have together, where a container has no limit

	Swap       SwapBehavior // "" = leave it to the kernel
	NodeSwap   int64        // bytes of swap of the node
	HostMemory int64        // bytes of memory of the node, by which swap is shared out

	OOMGroup    OOMGroup // "" = OOMNone
	QoSReserved int64    // percent of the memory requests that lower classes may not use
}

// SwapBehavior says what pods may swap, in the API's words.
type SwapBehavior string

// What pods may swap: nothing, or the Burstable ones their part of the node's swap by their memory requests.
const (
	NoSwap      SwapBehavior = "NoSwap"
	LimitedSwap SwapBehavior = "LimitedSwap"
)

// OOMGroup says who dies with a process that the kernel kills for want of memory; v2 only.
type OOMGroup string

// Who dies: the process, its container, its pod.
const (
	OOMNone      OOMGroup = "none"
	OOMContainer OOMGroup = "container"
	OOMPod       OOMGroup = "pod"
)

// The annotations of a pod that say what its specification has no field for.
const (
	OOMGroupAnnotation = "berth.node/oom-group" // none, container or pod
	CPUBurstAnnotation = "berth.node/cpu-burst" // a duration: CPU time that may be saved up, at most the quota
	IOWeightAnnotation = "berth.node/io-weight" // 1 to 10000, 100 is everybody's
)

const oomGroup = "memory.oom.group"

const (
	defaultThrottling = 0.9            // kubelet's
	maxIOWeight       = 10_000         // the kernel's
	maxBurst          = 24 * time.Hour // more than any quota
)

// CheckAnnotations says what is wrong with the annotations that shape a pod's groups.
func CheckAnnotations(annotations map[string]string) error {
	if v, ok := annotations[OOMGroupAnnotation]; ok {
		switch OOMGroup(v) {
		case OOMNone, OOMContainer, OOMPod:
		default:
			return fmt.Errorf("annotation %s: %q is not none, container or pod", OOMGroupAnnotation, v)
		}
	}
	if v, ok := annotations[CPUBurstAnnotation]; ok {
		if d, err := time.ParseDuration(v); err != nil || d < 0 || d > maxBurst {
			return fmt.Errorf("annotation %s: %q is not a duration such as 50ms", CPUBurstAnnotation, v)
		}
	}
	if v, ok := annotations[IOWeightAnnotation]; ok {
		if n, err := strconv.ParseUint(v, 10, 16); err != nil || n < 1 || n > maxIOWeight {
			return fmt.Errorf("annotation %s: %q is not a number from 1 to %d", IOWeightAnnotation, v, maxIOWeight)
		}
	}
	return nil
}

func (o Options) period() uint64 {
	if o.PeriodUs == 0 {
		return cgroups.DefaultPeriodUs
	}
	return o.PeriodUs
}

func (o Options) oomGroup(pod *corev1.Pod) OOMGroup {
	if v, ok := pod.Annotations[OOMGroupAnnotation]; ok && CheckAnnotations(pod.Annotations) == nil {
		return OOMGroup(v)
	}
	return o.OOMGroup
}

// burst is what a group with this quota may save up. The kernel takes no more than the quota.
func burst(pod *corev1.Pod, cpu *specs.LinuxCPU) {
	d, err := time.ParseDuration(pod.Annotations[CPUBurstAnnotation])
	if err != nil || d <= 0 || cpu.Quota == nil || *cpu.Quota <= 0 {
		return
	}
	us := min(uint64(d.Microseconds()), uint64(*cpu.Quota))
	cpu.Burst = &us
}

func set(r *specs.LinuxResources, file, value string) {
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified[file] = value
}

// ioWeight: the weight is the pod's against other pods. v1 counts from 10 to 1000.
func ioWeight(pod *corev1.Pod, r *specs.LinuxResources, unified bool) {
	n, err := strconv.ParseUint(pod.Annotations[IOWeightAnnotation], 10, 16)
	if err != nil || n < 1 || n > maxIOWeight {
		return
	}
	if unified {
		set(r, "io.weight", strconv.FormatUint(n, 10))
		return
	}
	w := uint16(10 + (n-1)*990/(maxIOWeight-1))
	r.BlockIO = &specs.LinuxBlockIO{Weight: &w}
}

// memoryQoS protects what is requested, and slows a container down before its limit kills it. Where request and limit
// are the same there is nothing between them.
func (o Options) memoryQoS(r *specs.LinuxResources, request, limit resource.Quantity) {
	if !o.MemoryQoS || !o.Unified {
		return
	}
	if v := request.Value(); v > 0 {
		set(r, "memory.min", strconv.FormatInt(v, 10))
	}
	if high := o.high(request.Value(), limit.Value()); high > request.Value() {
		set(r, "memory.high", strconv.FormatInt(high, 10))
	}
}

// high is request + factor * (limit or what the node has - request), in whole pages.
func (o Options) high(request, limit int64) int64 {
	if limit == 0 {
		limit = o.NodeMemory
	}
	if limit <= request {
		return 0
	}
	factor := o.ThrottlingFactor
	if factor == 0 {
		factor = defaultThrottling
	}
	page := int64(os.Getpagesize())
	return (request + int64(factor*float64(limit-request))) / page * page
}

// swap is what the container may swap, and whether that is to be said at all.
func (o Options) swap(pod *corev1.Pod, c *corev1.Container) (int64, bool) {
	switch {
	case o.Swap == "":
		return 0, false
	case o.Swap != LimitedSwap, !o.Unified, o.HostMemory <= 0, QoS(pod) != corev1.PodQOSBurstable, nodeCritical(pod):
		return 0, true
	}
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if request.IsZero() || request.Cmp(*limit) == 0 {
		return 0, true
	}
	return int64(float64(request.Value()) / float64(o.HostMemory) * float64(o.NodeSwap)), true
}

// setSwap: v1 limits memory and swap together, so without a limit of memory there is none of swap.
func (o Options) setSwap(r *specs.LinuxResources, pod *corev1.Pod, c *corev1.Container) {
	n, ok := o.swap(pod, c)
	switch {
	case !ok:
	case o.Unified:
		set(r, "memory.swap.max", strconv.FormatInt(n, 10))
	case r.Memory != nil && r.Memory.Limit != nil:
		v := *r.Memory.Limit
		r.Memory.Swap = &v
	}
}
