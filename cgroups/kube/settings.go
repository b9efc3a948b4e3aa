package kube

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/cgroups"
)

// Setting is one value a pod's spec leads to, and the way it came: the field of the spec, what was computed from it,
// the kernel file it is in.
type Setting struct {
	Field    string `json:"field"`    // "requests.cpu=250m"; where several add up, how
	Computed string `json:"computed"` // "250m * 1024 / 1000 = 256 shares"
	File     string `json:"file"`     // "cpu.shares"
	Want     string `json:"want"`     // "256"

	also   []string // what other programs make of the same, which is as good
	v1File string   // its name where a hybrid machine has the controller on v1, if File is that of v2
}

// Files are the names that the file may have.
func (s Setting) Files() []string {
	if s.v1File == "" {
		return []string{s.File}
	}
	return []string{s.File, s.v1File}
}

// Under returns the setting by the name that its file has in a group, there being one that has says is there.
func (s Setting) Under(has func(file string) bool) Setting {
	if s.v1File != "" && !has(s.File) && has(s.v1File) {
		s.File = s.v1File
	}
	return s
}

// Matches compares a value found in the file with what is wanted. The kernel rounds memory limits down to whole pages
// and spells "no limit" in v1 as a large number.
func (s Setting) Matches(found string) bool {
	if slices.Contains(s.also, strings.TrimSpace(found)) {
		return true
	}
	a, b := strings.Fields(s.Want), strings.Fields(found)
	if strings.HasSuffix(s.File, ".weight") && len(b) == 2 && b[0] == "default" {
		b = b[1:]
	}
	if strings.Join(a, " ") == strings.Join(b, " ") {
		return true
	}
	if len(a) != 1 || len(b) != 1 {
		return false
	}
	want, err1 := cgroups.ParseNumber([]byte(s.Want))
	got, err2 := cgroups.ParseNumber([]byte(b[0]))
	if err1 != nil || err2 != nil {
		return false
	}
	if want == got {
		return true
	}
	page := uint64(os.Getpagesize())
	return strings.HasPrefix(s.File, "memory.") && s.File != oomGroup && want != cgroups.NoLimit && got == want/page*page
}

// PodSettings are the settings of the pod's own group with their origin.
func PodSettings(m cgroups.Mode, pod *corev1.Pod, o Options) []Setting {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	how := "sum of containers"
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		how = "pod"
	}
	if len(pod.Spec.Overhead) > 0 {
		how += " + overhead"
	}
	return settings(m, PodResources(pod, o), origin{
		cpuRequest: name(how, "requests.cpu", requests, corev1.ResourceCPU),
		cpuLimit:   limitName(pod, how, "limits.cpu", limits, corev1.ResourceCPU),
		memory:     limitName(pod, how, "limits.memory", limits, corev1.ResourceMemory),
		milli:      requests.Cpu().MilliValue(),
	})
}

// ContainerSettings are the settings of a container's group with their origin.
func ContainerSettings(m cgroups.Mode, pod *corev1.Pod, c *corev1.Container, o Options) []Setting {
	return settings(m, ContainerResources(pod, c, o), originOf(pod, c))
}

func originOf(pod *corev1.Pod, c *corev1.Container) origin {
	request, limit := c.Resources.Requests, c.Resources.Limits
	or := origin{
		cpuRequest: name("", "requests.cpu", request, corev1.ResourceCPU), cpuLimit: name("", "limits.cpu", limit, corev1.ResourceCPU),
		memory: name("", "limits.memory", limit, corev1.ResourceMemory), milli: request.Cpu().MilliValue(),
	}
	if pod.Spec.Resources != nil {
		if !positive(limit, corev1.ResourceCPU) && positive(pod.Spec.Resources.Limits, corev1.ResourceCPU) {
			or.cpuLimit = name("pod", "limits.cpu", pod.Spec.Resources.Limits, corev1.ResourceCPU)
		}
		if !positive(limit, corev1.ResourceMemory) && positive(pod.Spec.Resources.Limits, corev1.ResourceMemory) {
			or.memory = name("pod", "limits.memory", pod.Spec.Resources.Limits, corev1.ResourceMemory)
		}
	}
	_, asked := request[corev1.ResourceCPU]
	if q, limited := ownOrPodLimit(pod, limit, corev1.ResourceCPU); limited && !asked {
		or.cpuRequest, or.milli = or.cpuLimit+" (no request)", q.MilliValue()
	}
	return or
}

type origin struct {
	cpuRequest, cpuLimit, memory, pids string
	milli                              int64
}

func name(how, field string, l corev1.ResourceList, r corev1.ResourceName) string {
	q, ok := l[r]
	if !ok || q.IsZero() {
		return "no " + field
	}
	if how != "" {
		how = " (" + how + ")"
	}
	return field + "=" + q.String() + how
}

// limitName tells why a sum is not enforced where some container has no limit.
func limitName(pod *corev1.Pod, how, field string, l corev1.ResourceList, r corev1.ResourceName) string {
	if !everyLimit(pod, r) {
		return "no " + field + " in every container"
	}
	return name(how, field, l, r)
}

func settings(m cgroups.Mode, r *specs.LinuxResources, o origin) []Setting {
	return append(append(cpuSettings(m, r, o), memorySettings(m, r, o)...), otherSettings(m, r)...)
}

// givenSettings are those of a group of which what is not said is not ours to say: an administrator may limit a whole
// class.
func givenSettings(m cgroups.Mode, r *specs.LinuxResources, o origin) []Setting {
	var out []Setting
	if r.CPU != nil {
		out = append(out, cpuSettings(m, r, o)[0])
	}
	if r.Memory != nil {
		out = append(out, memorySettings(m, r, o)...)
	}
	rest := *r
	rest.CPU = &specs.LinuxCPU{}
	for _, s := range otherSettings(m, &rest) {
		switch {
		case s.File == "pids.max":
			s.Field = o.pids
		case s.File == "memory.min":
			s.Field = "sum of requests.memory, node's memory QoS"
		case strings.HasPrefix(s.File, "hugetlb."):
			s.Field = "node's huge pages for pods"
		}
		out = append(out, s)
	}
	return out
}

func cpuSettings(m cgroups.Mode, r *specs.LinuxResources, o origin) []Setting {
	var out []Setting
	shares := *r.CPU.Shares
	computed := fmt.Sprintf("%d * 1024 / 1000 = %d shares", o.milli, o.milli*1024/1000)
	if raw := o.milli * 1024 / 1000; raw != int64(shares) {
		computed = fmt.Sprintf("%s, kept within %d..%d: %d", computed, minShares, maxShares, shares)
	}
	if m == cgroups.Unified {
		w := cgroups.Weight(shares)
		out = append(out, Setting{
			o.cpuRequest, fmt.Sprintf("%s = weight %d", computed, w), "cpu.weight", strconv.FormatUint(w, 10), otherWeights(shares), "",
		})
	} else {
		out = append(out, one(o.cpuRequest, computed, "cpu.shares", strconv.FormatUint(shares, 10)))
	}
	quota, period := int64(-1), uint64(cgroups.DefaultPeriodUs)
	computed = "no quota"
	if r.CPU.Quota != nil {
		quota, period = *r.CPU.Quota, *r.CPU.Period
		computed = fmt.Sprintf("%d µs every %d µs", quota, period)
	}
	if m != cgroups.Unified {
		s := one(o.cpuLimit, computed, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
		if quota > 0 {
			s.also = []string{strconv.FormatInt(wholePercent(quota, period), 10)}
		}
		out = append(out, s)
		if quota >= 0 {
			out = append(out, one(o.cpuLimit, computed, "cpu.cfs_period_us", strconv.FormatUint(period, 10)))
		}
		return out
	}
	want := "max"
	if quota >= 0 {
		want = strconv.FormatInt(quota, 10)
	}
	s := one(o.cpuLimit, computed, "cpu.max", want+" "+strconv.FormatUint(period, 10))
	if quota > 0 {
		s.also = []string{strconv.FormatInt(wholePercent(quota, period), 10) + " " + strconv.FormatUint(period, 10)}
	}
	return append(out, s)
}

func memorySettings(m cgroups.Mode, r *specs.LinuxResources, o origin) []Setting {
	file := "memory.limit_in_bytes"
	if m == cgroups.Unified {
		file = "memory.max"
	}
	if r.Memory == nil || r.Memory.Limit == nil {
		return []Setting{one(o.memory, "no limit", file, "max")}
	}
	v := strconv.FormatInt(*r.Memory.Limit, 10)
	return []Setting{one(o.memory, v+" bytes", file, v)}
}

func otherSettings(m cgroups.Mode, r *specs.LinuxResources) []Setting {
	var out []Setting
	if list := r.CPU.Cpus; list != "" {
		out = append(out, one("CPUs that were assigned", list, "cpuset.cpus", list))
	}
	if list := r.CPU.Mems; list != "" {
		out = append(out, one("memory nodes that were assigned", list, "cpuset.mems", list))
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		v := strconv.FormatInt(*r.Pids.Limit, 10)
		out = append(out, one("node's limit of tasks a pod", v, "pids.max", v))
	}
	for _, h := range r.HugepageLimits {
		v1, file := "hugetlb."+h.Pagesize+".limit_in_bytes", "hugetlb."+h.Pagesize+".max"
		if m == cgroups.Legacy {
			file = v1
		}
		v := strconv.FormatUint(h.Limit, 10)
		s := one("limits.hugepages of "+h.Pagesize, v+" bytes", file, v)
		if m == cgroups.Hybrid {
			s.v1File = v1 // it is on either side, as whoever booted the machine has it
		}
		out = append(out, s)
	}
	return append(out, chosenSettings(m, r)...)
}

// chosenSettings are those that come from annotations and from what the node was told.
func chosenSettings(m cgroups.Mode, r *specs.LinuxResources) []Setting {
	var out []Setting
	if c := r.CPU; c.Burst != nil {
		file := "cpu.cfs_burst_us"
		if m == cgroups.Unified {
			file = "cpu.max.burst"
		}
		v := strconv.FormatUint(*c.Burst, 10)
		out = append(out, one("annotation "+CPUBurstAnnotation, v+" µs, at most the quota", file, v))
	}
	if b := r.BlockIO; b != nil && b.Weight != nil {
		v := strconv.Itoa(int(*b.Weight))
		out = append(out, one("annotation "+IOWeightAnnotation, v+" of 10..1000", "blkio.bfq.weight", v))
	}
	if mem := r.Memory; mem != nil && mem.Swap != nil && mem.Limit != nil && m != cgroups.Unified {
		v := strconv.FormatInt(*mem.Swap, 10)
		out = append(out, one("node's swap behavior", v+" bytes of memory and swap", "memory.memsw.limit_in_bytes", v))
	}
	if m != cgroups.Unified {
		return out
	}
	for _, f := range []struct{ file, field string }{
		{"memory.min", "requests.memory, node's memory QoS"},
		{"memory.high", "requests.memory + factor * (limits.memory - requests.memory), node's memory QoS"},
		{"memory.swap.max", "node's swap behavior"},
		{"memory.oom.group", "annotation " + OOMGroupAnnotation + " or the node's default"},
		{"io.weight", "annotation " + IOWeightAnnotation},
	} {
		if v, ok := r.Unified[f.file]; ok {
			out = append(out, one(f.field, v, f.file, v))
		}
	}
	return out
}

func one(field, computed, file, want string) Setting {
	return Setting{Field: field, Computed: computed, File: file, Want: want}
}

// otherWeights are what runtimes make of a container's shares: the straight line that runc drew first, and the curve
// that it and crun draw now.
func otherWeights(shares uint64) []string {
	line := 1 + (max(shares, minShares)-minShares)*9999/(maxShares-minShares)
	return []string{strconv.FormatUint(line, 10), strconv.FormatUint(cgroup2.ConvertCPUSharesToCgroupV2Value(shares), 10)}
}
