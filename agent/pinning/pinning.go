// Package pinning gives containers CPUs and memory nodes of their own: it is what kubelet's CPU, memory and topology managers are,
// in one place, because a container's CPUs and its memory are chosen together or not well.
//
// What was given to whom is the only state. It is in one file, written before anybody acts on it; all else is derived from it
// and from the machine's layout. Who has nothing of its own runs on the shared CPUs, which are those that are left.
package pinning

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups/kube"
)

// Runtime is what has the containers.
type Runtime interface {
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
	UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error)
}

// Devices are other resources that come from NUMA nodes: what is chosen here suits them too.
type Devices interface {
	// Wishes says where what a container asks for can come from, or the pod as a whole with container "".
	Wishes(pod *corev1.Pod, container string) []Wish
}

// NodeMemory is memory of one NUMA node that no container is promised.
type NodeMemory struct {
	Node   int
	Limits corev1.ResourceList
}

// Config is what a [Manager] works with.
type Config struct {
	StaticCPUs   bool
	CPU          CPUOptions
	Reserved     cpuset.CPUSet // kept for the node
	ReservedCPUs int           // how many are kept for the node when Reserved does not say which; which, is chosen as for containers

	StaticMemory   bool
	ReservedMemory []NodeMemory

	Alignment AlignmentPolicy // "": none
	PodScope  bool            // all containers of a pod together, not each for itself
	Closest   bool            // prefer nodes that are near to each other
	MaxNodes  int             // more NUMA nodes than these are refused with an alignment policy: all their sets are looked at; 0: 8

	Machine *topology.Machine
	File    string // of the assignments
	Runtime Runtime
	Devices Devices // nil: there are none
	Log     *slog.Logger
}

// Enabled says whether anything is ever pinned.
func (c *Config) Enabled() bool {
	return c.StaticCPUs || c.StaticMemory || c.Alignment != "" && c.Alignment != AlignNone
}

// The reasons of a refusal, by kubelet's names.
const (
	ReasonAdmission = "UnexpectedAdmissionError"
	ReasonAffinity  = "TopologyAffinityError"
	ReasonSMT       = "SMTAlignmentError"
)

// Refusal says why a pod cannot have what it asks for.
type Refusal struct {
	Reason, Message string
	Final           bool // not even on an empty node
}

func (r *Refusal) Error() string { return r.Message }

// Pin is where a container runs.
type Pin = kube.Pin

// Manager gives out CPUs and memory. A nil Manager gives out nothing. Its methods can be called at any time.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	align   aligner
	offered cpuset.CPUSet // CPUs that can be given to one container alone
	changed chan struct{}

	mu      sync.Mutex
	pods    []*assignment                  // in the order of their admission
	sharers map[types.UID]bool             // admitted pods with containers on the shared CPUs
	former  map[types.UID]*assignment      // of an agent that pinned, for one that does not any more
	quotas  map[types.UID]map[string]int64 // of the containers in former
	near    map[types.UID]map[string]Nodes // where the devices of a pod's containers are to come from; it is asked for once, at its admission
	counts  Counts
	synced  bool // all pods that are wanted have been here

	syncing sync.Mutex
	applied map[string]Pin // by container ID; guarded by syncing
}

// Counts are what was asked and refused since the start.
type Counts struct {
	CPURequests, CPUErrors, MemoryRequests, MemoryErrors, AlignRequests, AlignErrors int64
}

// New checks the configuration against the machine and takes over what was given out before.
func New(c Config) (*Manager, error) {
	m, err := checked(c)
	if err != nil {
		return nil, err
	}
	return m, m.load()
}

// Check says what the machine has against the configuration, and changes nothing.
func Check(c Config) error {
	_, err := checked(c)
	return err
}

func checked(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Alignment == "" {
		c.Alignment = AlignNone
	}
	if c.MaxNodes == 0 {
		c.MaxNodes = 8
	}
	m := &Manager{
		cfg: c, log: c.Log, changed: make(chan struct{}, 1), sharers: map[types.UID]bool{}, applied: map[string]Pin{},
		near: map[types.UID]map[string]Nodes{}, former: map[types.UID]*assignment{}, quotas: map[types.UID]map[string]int64{},
		align: aligner{policy: c.Alignment, closest: c.Closest, machine: c.Machine},
	}
	for _, n := range c.Machine.Nodes {
		m.align.all |= NodesOf(n.ID)
	}
	return m, m.check()
}

// check says what the machine has against the configuration.
func (m *Manager) check() error {
	c := &m.cfg
	nodes := len(c.Machine.Nodes)
	if (c.Alignment != AlignNone || c.StaticMemory) && nodes > c.MaxNodes {
		return fmt.Errorf("this machine has %d NUMA nodes and at most %d are allowed: --topology-manager-policy-options max-allowable-numa-nodes allows more", nodes, c.MaxNodes)
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
	m.offered = all.Difference(c.Reserved)
	return nil
}

// Admit gives a pod what it asks for, or says with a [Refusal] why it cannot be had. A pod that has it keeps it: it can be asked
// again at any time, also by the next agent. What a pod had stays its own when it asks for something else that cannot be had.
func (m *Manager) Admit(pod *corev1.Pod) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.former[pod.UID]; f != nil {
		m.keepQuotas(pod)
	}
	if !m.cfg.Enabled() {
		return nil
	}
	asks := m.asks(pod)
	wanted := m.wishes(pod, asks)
	had := m.find(pod.UID)
	if had != nil && had.answers(asks) && !wanted {
		m.share(pod.UID, asks)
		return nil
	}
	m.count(asks)
	pool := m.whole(pod, asks)
	got, near, err := m.allocate(asks, pool, m.others(pod.UID))
	if err != nil {
		// Devices come and go, so that a pod that wants some may find other ones later.
		if _, _, never := m.allocate(asks, pool, nil); never != nil && !wanted {
			err = never
		}
		return m.refuse(err, asks)
	}
	if err := m.leaveShared(pod.UID, asks, got); err != nil {
		return m.refuse(err, asks)
	}
	if err := m.keep(pod, got); err != nil {
		return &Refusal{Reason: ReasonAdmission, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	m.share(pod.UID, asks)
	if delete(m.near, pod.UID); wanted {
		m.near[pod.UID] = near
	}
	return nil
}

// wishes asks for what the devices of a pod wish, and says whether they wish for anything.
func (m *Manager) wishes(pod *corev1.Pod, asks []ask) bool {
	if m.cfg.Devices == nil || m.cfg.Alignment == AlignNone {
		return false
	}
	found := false
	for i := range asks {
		asks[i].wishes = m.cfg.Devices.Wishes(pod, asks[i].container)
		found = found || len(asks[i].wishes) > 0
	}
	return found
}

// whole is what a pod asks for as a whole.
func (m *Manager) whole(pod *corev1.Pod, asks []ask) ask {
	out := whole(asks)
	if m.cfg.Devices != nil && m.cfg.PodScope && m.cfg.Alignment != AlignNone {
		out.wishes = m.cfg.Devices.Wishes(pod, "")
	}
	return out
}

// Near are the NUMA nodes that the devices of a container are to come from, as its pod's admission has found; 0: any.
func (m *Manager) Near(uid types.UID, container string) Nodes {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.near[uid][container]
}

// Keeps says whether a pod would have, with this specification, exactly what it has.
func (m *Manager) Keeps(pod *corev1.Pod) bool {
	if m == nil || !m.cfg.Enabled() {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	had := m.find(pod.UID)
	if had == nil {
		had = &assignment{}
	}
	return had.answers(m.asks(pod))
}

// keep writes down what a pod was given.
func (m *Manager) keep(pod *corev1.Pod, got []given) error {
	had := m.find(pod.UID)
	if len(got) == 0 && had == nil {
		return nil
	}
	before := m.pods
	m.pods = m.others(pod.UID)
	if len(got) > 0 {
		m.pods = append(m.pods, &assignment{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Containers: got})
	}
	if err := m.save(); err != nil {
		m.pods = before
		return err
	}
	m.ring()
	return nil
}

func (m *Manager) find(uid types.UID) *assignment {
	for _, a := range m.pods {
		if a.UID == uid {
			return a
		}
	}
	return nil
}

func (m *Manager) others(uid types.UID) []*assignment {
	return slices.DeleteFunc(slices.Clone(m.pods), func(a *assignment) bool { return a.UID == uid })
}

// share notes whether a pod has containers on the shared CPUs.
func (m *Manager) share(uid types.UID, asks []ask) {
	delete(m.sharers, uid)
	if slices.ContainsFunc(asks, func(a ask) bool { return a.cpus == 0 }) {
		m.sharers[uid] = true
	}
}

// leaveShared refuses what would leave containers without a single CPU: the kernel takes no empty list.
func (m *Manager) leaveShared(uid types.UID, asks []ask, got []given) error {
	if !m.cfg.StaticCPUs {
		return nil
	}
	shares := slices.ContainsFunc(asks, func(a ask) bool { return a.cpus == 0 })
	for other := range m.sharers {
		shares = shares || other != uid
	}
	left := m.shared(append(m.others(uid), &assignment{Containers: got}))
	if !shares || !left.IsEmpty() {
		return nil
	}
	return fmt.Errorf("no CPU would be left for the containers that share: %d are reserved strictly, the other %d of %d exclusive",
		m.cfg.Reserved.Size(), m.offered.Size(), m.cfg.Machine.All().Size())
}

// refuse turns an error of an allocation into a refusal.
func (m *Manager) refuse(err error, asks []ask) error {
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		r = &Refusal{Reason: ReasonAdmission, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	for _, a := range asks {
		switch {
		case r.Reason == ReasonAffinity:
			m.counts.AlignErrors++
			return r
		case a.cpus > 0:
			m.counts.CPUErrors++
			return r
		case len(a.memory) > 0:
			m.counts.MemoryErrors++
			return r
		}
	}
	return r
}

func (m *Manager) count(asks []ask) {
	if m.cfg.Alignment != AlignNone {
		m.counts.AlignRequests++
	}
	for _, a := range asks {
		if a.cpus > 0 {
			m.counts.CPURequests++
		}
		if len(a.memory) > 0 {
			m.counts.MemoryRequests++
		}
	}
}

// Release takes back what a pod was given. Nothing of it may run any more.
func (m *Manager) Release(uid types.UID) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sharers, uid)
	delete(m.near, uid)
	return m.drop(func(a *assignment) bool { return a.UID == uid })
}

// drop takes back what is no longer to be given.
func (m *Manager) drop(gone func(*assignment) bool) error {
	before := m.pods
	m.pods = slices.DeleteFunc(slices.Clone(m.pods), gone)
	if len(m.pods) == len(before) {
		return nil
	}
	if err := m.save(); err != nil {
		m.pods = before
		return err
	}
	m.ring()
	return nil
}

// Synced takes back what pods were given that are not there any more, and has the containers run where they should.
func (m *Manager) Synced(here func(types.UID) bool) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.ring()
	m.synced = true
	return m.drop(func(a *assignment) bool { return !here(a.UID) })
}

// Pin is where a container of a pod runs.
func (m *Manager) Pin(uid types.UID, container string) Pin {
	if m == nil {
		return Pin{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pin(uid, container)
}

func (m *Manager) pin(uid types.UID, container string) Pin {
	var out Pin
	if m.cfg.StaticCPUs {
		out.CPUs = m.shared(m.pods).String()
	}
	a := m.find(uid)
	if a == nil {
		return out
	}
	for i := range a.Containers {
		g := &a.Containers[i]
		if g.Container != container {
			continue
		}
		if g.CPUs != "" {
			out.CPUs, out.Exclusive = g.CPUs, true
		}
		if n := g.nodes(); n != 0 {
			out.Mems = cpuset.New(n.list()...).String()
		}
	}
	return out
}

// Exclusive says whether a container of the pod has CPUs of its own.
func (m *Manager) Exclusive(uid types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.find(uid)
	return a != nil && slices.ContainsFunc(a.Containers, func(g given) bool { return g.CPUs != "" })
}

// shared are the CPUs of all who have none of their own.
func (m *Manager) shared(pods []*assignment) cpuset.CPUSet {
	out := m.cfg.Machine.All()
	if m.cfg.CPU.StrictReservation {
		out = out.Difference(m.cfg.Reserved)
	}
	for _, a := range pods {
		out = out.Difference(a.cpus())
	}
	return out
}

// Usage is how many CPUs are shared and how many are exclusive, and what was asked since the start.
func (m *Manager) Usage() (shared, exclusive int, counts Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shared(m.pods)
	for _, a := range m.pods {
		exclusive += a.cpus().Size()
	}
	return s.Size(), exclusive, m.counts
}

func (m *Manager) ring() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// keepQuotas notes what CPU quota the containers of a pod should have that had none while they were alone on their CPUs.
func (m *Manager) keepQuotas(pod *corev1.Pod) {
	of := map[string]int64{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q := kube.ContainerResources(pod, &list[i]).CPU.Quota; q != nil {
				of[list[i].Name] = *q
			}
		}
	}
	m.quotas[pod.UID] = of
}
