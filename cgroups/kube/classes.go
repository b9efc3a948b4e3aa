package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/cgroups"
)

// NodeLimits is what a part of the node may have: its pods together, or what is reserved beside them. Zero is no limit.
type NodeLimits struct {
	MilliCPU  int64
	Memory    int64 // bytes
	Pids      int64
	Hugepages map[string]uint64 // bytes by the kernel's name of the size, "2MB"

	MemoryMin int64 // bytes that are not reclaimed for others; v2 only
}

func (l NodeLimits) resources(unified bool) *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if l.MilliCPU > 0 {
		shares := Shares(l.MilliCPU)
		r.CPU = &specs.LinuxCPU{Shares: &shares}
	}
	if l.Memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l.Memory}
	}
	if l.Pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.Pids}
	}
	for _, size := range slices.Sorted(maps.Keys(l.Hugepages)) {
		r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: l.Hugepages[size]})
	}
	if unified && l.MemoryMin > 0 {
		r.Unified = map[string]string{"memory.min": strconv.FormatInt(l.MemoryMin, 10)}
	}
	return r
}

// Reserve gives a group beside the pods, the system's or kubelet-like daemons', what is reserved for it, and no more.
// It must be there: whoever runs these daemons has made it.
func Reserve(t *Tree, group string, l NodeLimits) error {
	d := t.d
	if d.Driver() == cgroups.DriverSystemd {
		if !isUnit(group) {
			d = Cgroupfs(t.h) // not systemd's
		}
	}
	if err := d.Update(plainPath(group), l.resources(t.opts.Unified)); err != nil {
		return fmt.Errorf("reserve for group %s: %w", group, err)
	}
	return nil
}

// isUnit says whether a group is a unit of systemd that can be told settings.
func isUnit(group string) bool {
	return strings.HasSuffix(group, ".slice") || strings.HasSuffix(group, ".scope")
}

// Requests are what a pod adds to its class.
type Requests struct {
	Class            corev1.PodQOSClass
	MilliCPU, Memory int64
}

// RequestsOf adds up what a pod requests.
func RequestsOf(p *corev1.Pod) Requests {
	r := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	return Requests{QoS(p), r.Cpu().MilliValue(), r.Memory().Value()}
}

// SyncQoS makes the classes as large as their pods, those whose containers have not ended for good: the Burstable class
// has the sum of its pods' CPU requests as its share against the Guaranteed pods beside it, and memory is protected and
// reserved as the options say. It returns what the groups of the node's pods together and of the classes have then.
func (t *Tree) SyncQoS(pods []Requests) ([]Wanted, error) {
	sets, how := sizes{t.opts, t.limit}.of(pods)
	var out []Wanted
	var errs []error
	for _, class := range classes() {
		r, change := sets[class], sets[class]
		if class == corev1.PodQOSGuaranteed {
			change = &specs.LinuxResources{Unified: r.Unified} // the rest is the node's, and there since [Tree.Setup]
		}
		if err := t.d.Update(t.ClassPath(class), change); err != nil {
			errs = append(errs, fmt.Errorf("update class %s: %w", class, err))
			continue
		}
		out = append(out, Wanted{Path: t.ClassPath(class), Resources: r, Settings: givenSettings(t.h.Mode(), r, how[class]), partial: true})
	}
	return out, errors.Join(errs...)
}

// Unreserve takes from the classes the limits of memory that [Options.QoSReserved] has given them. They are not told
// from those of somebody else, so that whoever sets limits by that option has to remember it.
func (t *Tree) Unreserve() error {
	var errs []error
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		none := int64(-1)
		err := t.d.Update(t.ClassPath(class), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &none}})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("take limits from class %s: %w", class, err))
		}
	}
	return errors.Join(errs...)
}

// sizes is what the classes are made as large as, beside their pods.
type sizes struct {
	opts  Options
	limit NodeLimits
}

// of is what the groups of the classes should have with these pods, and where it comes from. Guaranteed pods are
// directly in the group of all pods, which has what is the node's.
func (s sizes) of(pods []Requests) (map[corev1.PodQOSClass]*specs.LinuxResources, map[corev1.PodQOSClass]origin) {
	var milli int64
	requested := map[corev1.PodQOSClass]int64{}
	for _, p := range pods {
		requested[p.Class] += p.Memory
		if p.Class == corev1.PodQOSBurstable {
			milli += p.MilliCPU
		}
	}
	burstable, least := Shares(milli), uint64(minShares)
	sets := map[corev1.PodQOSClass]*specs.LinuxResources{
		corev1.PodQOSGuaranteed: s.limit.resources(s.opts.Unified),
		corev1.PodQOSBurstable:  {CPU: &specs.LinuxCPU{Shares: &burstable}},
		corev1.PodQOSBestEffort: {CPU: &specs.LinuxCPU{Shares: &least}},
	}
	s.protect(sets, requested)
	s.reserve(sets, requested)
	return sets, map[corev1.PodQOSClass]origin{
		corev1.PodQOSGuaranteed: {cpuRequest: "node's CPU for pods", memory: "node's memory for pods", pids: "node's tasks for pods", milli: s.limit.MilliCPU},
		corev1.PodQOSBurstable:  {cpuRequest: "sum of requests.cpu of Burstable pods", memory: "memory that requests of Guaranteed pods leave", milli: milli},
		corev1.PodQOSBestEffort: {cpuRequest: "least there is, for BestEffort pods", memory: "memory that requests of other pods leave"},
	}
}

// protect keeps what pods request from being reclaimed. A group's protection is worth what its parents' is at most.
func (s sizes) protect(sets map[corev1.PodQOSClass]*specs.LinuxResources, requested map[corev1.PodQOSClass]int64) {
	if !s.opts.MemoryQoS || !s.opts.Unified {
		return
	}
	burstable := requested[corev1.PodQOSBurstable]
	all := burstable + requested[corev1.PodQOSGuaranteed]
	sets[corev1.PodQOSBurstable].Unified = map[string]string{"memory.min": strconv.FormatInt(burstable, 10)}
	sets[corev1.PodQOSGuaranteed].Unified = map[string]string{"memory.min": strconv.FormatInt(all, 10)}
}

// reserve limits the lower classes to what the requests of those above them leave, as far as the percentage goes.
func (s sizes) reserve(sets map[corev1.PodQOSClass]*specs.LinuxResources, requested map[corev1.PodQOSClass]int64) {
	if s.opts.QoSReserved <= 0 || s.limit.Memory <= 0 {
		return
	}
	left := s.limit.Memory - requested[corev1.PodQOSGuaranteed]*s.opts.QoSReserved/100
	burstable := max(left, minMemory)
	besteffort := max(left-requested[corev1.PodQOSBurstable]*s.opts.QoSReserved/100, minMemory)
	sets[corev1.PodQOSBurstable].Memory = &specs.LinuxMemory{Limit: &burstable}
	sets[corev1.PodQOSBestEffort].Memory = &specs.LinuxMemory{Limit: &besteffort}
}

// minMemory is the least a class is limited to: with none at all not even its keepers would run.
const minMemory = 16 << 20
