// Package pinning gives containers CPUs and memory nodes of their own: it is what kubelet's CPU, memory and topology
// managers are, in one place, because a container's CPUs and its memory are chosen together or not well.
//
// What was given to whom is the only state. It is in one file, written before anybody acts on it; all else is derived
// from it and from the machine's layout. Who has nothing of its own runs on the shared CPUs, which are those that are
// left.
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
	UpdateContainerResources(
		context.Context, *runtimeapi.UpdateContainerResourcesRequest,
	) (*runtimeapi.UpdateContainerResourcesResponse, error)
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
	StaticCPUs bool
	CPU        CPUOptions
	Reserved   cpuset.CPUSet // kept for the node
	// How many the node keeps when Reserved does not say which; they are chosen as for containers.
	ReservedCPUs int

	StaticMemory   bool
	ReservedMemory []NodeMemory

	Alignment AlignmentPolicy // "": none
	PodScope  bool            // all containers of a pod together, not each for itself
	Closest   bool            // prefer nodes that are near to each other
	MaxNodes  int             // of NUMA nodes, with an alignment policy: all their sets are looked at; 0: 8

	Machine *topology.Machine
	File    string // of the assignments
	Runtime Runtime
	Devices Devices      // nil: there are none
	Groups  kube.Options // how limits become quotas
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
	alloc   *allocator
	mover   *mover
	changed chan struct{}

	mu      sync.Mutex
	book    *book                          // what was given to whom
	sharers map[types.UID]bool             // admitted pods with containers on the shared CPUs
	quotas  map[types.UID]map[string]quota // of containers that an agent before this one had pinned
	near    map[types.UID]map[string]Nodes // where devices of a pod's containers come from, asked at admission
	counts  Counts
	synced  bool // all pods that are wanted have been here
}

// Counts are what was asked and refused since the start.
type Counts struct {
	CPURequests, CPUErrors, MemoryRequests, MemoryErrors, AlignRequests, AlignErrors int64
}

func (c *Counts) asked(asks []ask, alignment AlignmentPolicy) {
	if alignment != AlignNone {
		c.AlignRequests++
	}
	for _, a := range asks {
		if a.cpus > 0 {
			c.CPURequests++
		}
		if len(a.memory) > 0 {
			c.MemoryRequests++
		}
	}
}

// refuse turns an error of an allocation into a refusal, and counts it.
func (c *Counts) refuse(err error, asks []ask) error {
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		r = &Refusal{Reason: ReasonAdmission, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	for _, a := range asks {
		switch {
		case r.Reason == ReasonAffinity:
			c.AlignErrors++
			return r
		case a.cpus > 0:
			c.CPUErrors++
			return r
		case len(a.memory) > 0:
			c.MemoryErrors++
			return r
		}
	}
	return r
}

// New checks the configuration against the machine and takes over what was given out before.
func New(c Config) (*Manager, error) {
	alloc, err := newAllocator(c)
	if err != nil {
		return nil, err
	}
	c = alloc.cfg
	m := &Manager{
		cfg: c, log: c.Log, alloc: alloc, changed: make(chan struct{}, 1),
		mover:   &mover{runtime: c.Runtime, applied: map[string]Pin{}},
		book:    &book{alloc: alloc, former: map[types.UID]*assignment{}},
		sharers: map[types.UID]bool{}, quotas: map[types.UID]map[string]quota{}, near: map[types.UID]map[string]Nodes{},
	}
	return m, m.book.load()
}

// Check says what the machine has against the configuration, and changes nothing.
func Check(c Config) error {
	_, err := newAllocator(c)
	return err
}

// Admit gives a pod what it asks for, or says with a [Refusal] why it cannot be had. A pod that has it keeps it: it can
// be asked again at any time, also by the next agent. What a pod had stays its own when it asks for something else that
// cannot be had.
func (m *Manager) Admit(pod *corev1.Pod) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.book.former[pod.UID] != nil {
		m.keepQuotas(pod)
	}
	if !m.cfg.Enabled() {
		return nil
	}
	asks := m.alloc.asks(pod)
	wanted := m.alloc.wishes(pod, asks)
	had := m.book.find(pod.UID)
	if had != nil && had.answers(asks) && !wanted {
		m.share(pod.UID, asks)
		return nil
	}
	m.counts.asked(asks, m.cfg.Alignment)
	pool := m.alloc.whole(pod, asks)
	got, near, err := m.alloc.allocate(asks, pool, m.book.others(pod.UID))
	if err != nil {
		// Devices come and go, so that a pod that wants some may find other ones later.
		if _, _, never := m.alloc.allocate(asks, pool, nil); never != nil && !wanted {
			err = never
		}
		return m.counts.refuse(err, asks)
	}
	if err := m.leaveShared(pod.UID, asks, got); err != nil {
		return m.counts.refuse(err, asks)
	}
	changed, err := m.book.keep(pod, got)
	if err != nil {
		return &Refusal{Reason: ReasonAdmission, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	if changed {
		m.ring()
	}
	m.share(pod.UID, asks)
	if delete(m.near, pod.UID); wanted {
		m.near[pod.UID] = near
	}
	return nil
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
	had := m.book.find(pod.UID)
	if had == nil {
		had = &assignment{}
	}
	return had.answers(m.alloc.asks(pod))
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
	left := m.alloc.shared(append(m.book.others(uid), &assignment{Containers: got}))
	if !shares || !left.IsEmpty() {
		return nil
	}
	return fmt.Errorf("no CPU would be left for the containers that share: %d are reserved strictly, the other %d of %d exclusive",
		m.cfg.Reserved.Size(), m.alloc.offered.Size(), m.cfg.Machine.All().Size())
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
	dropped, err := m.book.drop(func(a *assignment) bool { return a.UID == uid })
	if dropped {
		m.ring()
	}
	return err
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
	_, err := m.book.drop(func(a *assignment) bool { return !here(a.UID) })
	return err
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
		out.CPUs = m.alloc.shared(m.book.pods).String()
	}
	a := m.book.find(uid)
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
	a := m.book.find(uid)
	return a != nil && slices.ContainsFunc(a.Containers, func(g given) bool { return g.CPUs != "" })
}

// Usage is how many CPUs are shared and how many are exclusive, and what was asked since the start.
func (m *Manager) Usage() (shared, exclusive int, counts Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.alloc.shared(m.book.pods)
	for _, a := range m.book.pods {
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

// keepQuotas notes what CPU quota the containers of a pod should have that had none while they were alone on their
// CPUs.
func (m *Manager) keepQuotas(pod *corev1.Pod) {
	of := map[string]quota{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			cpu := kube.ContainerResources(pod, &list[i], m.cfg.Groups).CPU
			if cpu.Quota != nil && cpu.Period != nil {
				of[list[i].Name] = quota{*cpu.Quota, int64(*cpu.Period)}
			}
		}
	}
	m.quotas[pod.UID] = of
}
