package pinning

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/cgroups/kube"
)

// allocator chooses, by the configuration and the machine alone: what was given to whom it is told.
type allocator struct {
	cfg     Config
	align   aligner
	offered cpuset.CPUSet // CPUs that can be given to one container alone
}

// newAllocator checks the configuration against the machine.
func newAllocator(c Config) (*allocator, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Alignment == "" {
		c.Alignment = AlignNone
	}
	if c.MaxNodes == 0 {
		c.MaxNodes = 8
	}
	p := &allocator{cfg: c, align: aligner{policy: c.Alignment, closest: c.Closest, machine: c.Machine}}
	for _, n := range c.Machine.Nodes {
		p.align.all |= NodesOf(n.ID)
	}
	return p, p.check()
}

// check says what the machine has against the configuration.
func (p *allocator) check() error {
	c := &p.cfg
	nodes := len(c.Machine.Nodes)
	if (c.Alignment != AlignNone || c.StaticMemory) && nodes > c.MaxNodes {
		return fmt.Errorf("this machine has %d NUMA nodes and at most %d are allowed: --topology-manager-policy-options max-allowable-numa-nodes allows more",
			nodes, c.MaxNodes)
	}
	if c.CPU.AlignBySocket && len(c.Machine.Groups(socket)) > nodes {
		return errors.New("--cpu-manager-policy-options align-by-socket: this machine has more sockets than NUMA nodes")
	}
	if c.StaticMemory && len(c.ReservedMemory) == 0 {
		return errors.New("--memory-manager-policy Static needs --reserved-memory: memory that no container is promised")
	}
	if _, err := newMemory(c.Machine, c.ReservedMemory); err != nil {
		return fmt.Errorf("--reserved-memory: %w", err)
	}
	if !c.StaticCPUs {
		return nil
	}
	all := c.Machine.All()
	if c.Reserved.IsEmpty() && c.ReservedCPUs > 0 {
		var err error
		if c.Reserved, err = reserve(c.Machine, c.ReservedCPUs); err != nil {
			return fmt.Errorf("reserve CPUs for the node: %w", err)
		}
	}
	if c.Reserved.IsEmpty() {
		return errors.New("--cpu-manager-policy static needs CPUs for the node itself: --reserved-cpus says which, or the cpu of --system-reserved and --kube-reserved how many")
	}
	if !c.Reserved.IsSubsetOf(all) {
		return fmt.Errorf("--reserved-cpus %s: CPUs %s are not online", c.Reserved, c.Reserved.Difference(all))
	}
	p.offered = all.Difference(c.Reserved)
	return nil
}

func (p *allocator) policies() (cpu, memory string) {
	cpu, memory = "none", "None"
	if p.cfg.StaticCPUs {
		cpu = "static"
	}
	if p.cfg.StaticMemory {
		memory = "Static"
	}
	return cpu, memory
}

// asks are what the containers of a pod ask for, in the order of their start. Only Guaranteed pods are promised
// anything; what a pod asks for as a whole is not any container's.
func (p *allocator) asks(pod *corev1.Pod) []ask {
	own := kube.QoS(pod) == corev1.PodQOSGuaranteed && !resourcehelper.IsPodLevelResourcesSet(pod)
	var out []ask
	one := func(c *corev1.Container, init bool) {
		sidecar := init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		k := ask{container: c.Name, init: init && !sidecar, sidecar: sidecar, memory: amounts{}}
		if own {
			// A request that is not given is the limit.
			wanted := corev1.ResourceList{}
			maps.Copy(wanted, c.Resources.Limits)
			maps.Copy(wanted, c.Resources.Requests)
			k.cpus, k.memory = p.wanted(wanted)
		}
		out = append(out, k)
	}
	for i := range pod.Spec.InitContainers {
		one(&pod.Spec.InitContainers[i], true)
	}
	for i := range pod.Spec.Containers {
		one(&pod.Spec.Containers[i], false)
	}
	return out
}

func (p *allocator) wanted(list corev1.ResourceList) (cpus int, memory amounts) {
	memory = amounts{}
	if milli := list.Cpu().MilliValue(); p.cfg.StaticCPUs && milli > 0 && milli%1000 == 0 {
		cpus = int(milli / 1000)
	}
	if !p.cfg.StaticMemory {
		return cpus, memory
	}
	for name, q := range list {
		pinned := name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if pinned && q.Value() > 0 {
			memory[name] = q.Value()
		}
	}
	return cpus, memory
}

// wishes asks for what the devices of a pod wish, and says whether they wish for anything.
func (p *allocator) wishes(pod *corev1.Pod, asks []ask) bool {
	if p.cfg.Devices == nil || p.cfg.Alignment == AlignNone {
		return false
	}
	found := false
	for i := range asks {
		asks[i].wishes = p.cfg.Devices.Wishes(pod, asks[i].container)
		found = found || len(asks[i].wishes) > 0
	}
	return found
}

// whole is what a pod asks for as a whole.
func (p *allocator) whole(pod *corev1.Pod, asks []ask) ask {
	out := whole(asks)
	if p.cfg.Devices != nil && p.cfg.PodScope && p.cfg.Alignment != AlignNone {
		out.wishes = p.cfg.Devices.Wishes(pod, "")
	}
	return out
}

// newLedger is what the pods that have something leave over.
func (p *allocator) newLedger(pods []*assignment) (*ledger, error) {
	mem, err := newMemory(p.cfg.Machine, p.cfg.ReservedMemory)
	if err != nil {
		return nil, err
	}
	l := &ledger{by: p, free: p.offered, memory: mem}
	for _, a := range pods {
		l.begin()
		for i := range a.Containers {
			if !l.take(&a.Containers[i]) {
				return nil, fmt.Errorf("pod %s/%s was given more than there is", a.Namespace, a.Name)
			}
		}
	}
	l.begin()
	return l, nil
}

// allocate chooses for a pod beside others, and says which nodes each container is near to. pool is what the pod asks
// for as a whole. It is pure.
func (p *allocator) allocate(asks []ask, pool ask, others []*assignment) ([]given, map[string]Nodes, error) {
	final := others == nil
	l, err := p.newLedger(others)
	if err != nil {
		return nil, nil, err
	}
	var told Hint
	if p.cfg.PodScope {
		if told, err = l.tell(pool); err != nil {
			return nil, nil, finally(err, final)
		}
	}
	var out []given
	near := map[string]Nodes{}
	for _, k := range asks {
		if !p.cfg.PodScope {
			if told, err = l.tell(k); err != nil {
				return nil, nil, finally(err, final)
			}
		}
		near[k.container] = told.Nodes
		g, err := l.place(k, told.Nodes)
		if err != nil {
			return nil, nil, finally(err, final)
		}
		if g.CPUs != "" || len(g.Memory) > 0 {
			out = append(out, g)
		}
	}
	return out, near, nil
}

// finally says of a refusal that it is for ever.
func finally(err error, final bool) error {
	if r, ok := err.(*Refusal); ok { //nolint:errorlint // what allocate returns is not wrapped
		r.Final = final
		return r
	}
	return &Refusal{
		Reason: ReasonAdmission, Final: final, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
	}
}

// outdated says why an assignment cannot be kept beside those before it.
func (p *allocator) outdated(a *assignment, before []*assignment) string {
	cpus := a.cpus()
	var memory bool
	for i := range a.Containers {
		memory = memory || len(a.Containers[i].Memory) > 0
	}
	cpu, mem := p.policies()
	switch gone := cpus.Difference(p.cfg.Machine.All()); {
	case !p.cfg.StaticCPUs && !cpus.IsEmpty():
		return "the policy for CPUs is " + cpu
	case !p.cfg.StaticMemory && memory:
		return "the policy for memory is " + mem
	case !gone.IsEmpty():
		return fmt.Sprintf("CPUs %s are not online any more", gone)
	}
	if kept := cpus.Intersection(p.cfg.Reserved); !kept.IsEmpty() {
		return fmt.Sprintf("CPUs %s are reserved for the node", kept)
	}
	if _, err := p.newLedger(append(slices.Clip(before), a)); err != nil {
		return strings.TrimSpace(err.Error())
	}
	return ""
}

// shared are the CPUs of all who have none of their own.
func (p *allocator) shared(pods []*assignment) cpuset.CPUSet {
	out := p.cfg.Machine.All()
	if p.cfg.CPU.StrictReservation {
		out = out.Difference(p.cfg.Reserved)
	}
	for _, a := range pods {
		out = out.Difference(a.cpus())
	}
	return out
}

// allocatable is what containers can have of their own, whoever has it: CPUs, and memory by node.
func (p *allocator) allocatable() (cpus []int, memory []Block) {
	if p.cfg.StaticCPUs {
		cpus = p.offered.List()
	}
	if !p.cfg.StaticMemory {
		return cpus, nil
	}
	all, err := newMemory(p.cfg.Machine, p.cfg.ReservedMemory)
	if err != nil {
		return cpus, nil // it was checked when the agent started
	}
	for _, n := range p.cfg.Machine.Nodes {
		pool := all.nodes[n.ID]
		for _, name := range sortedNames(pool.allocatable) {
			memory = append(memory, Block{Resource: name, Nodes: []int{n.ID}, Bytes: pool.allocatable[name]})
		}
	}
	return cpus, memory
}
