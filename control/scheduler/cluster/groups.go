package cluster

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
)

// Groups are the groups of pods that are given nodes together: which pods are of each, and which of these have a node.
// They are of an API that is not served by default; without it there are none, and none is found.
type Groups struct {
	cache  *Cache
	lister schedulinglisters.PodGroupLister // nil: the API has none

	mu  sync.Mutex
	all map[cache.ObjectName]*members
}

// members are the pods of a group, and how many of them the API says are bound.
type members struct {
	pods  map[types.UID]*corev1.Pod
	bound int
}

func (m *members) remove(uid types.UID) {
	if had := m.pods[uid]; had != nil && had.Spec.NodeName != "" {
		m.bound--
	}
	delete(m.pods, uid)
}

var _ fwk.PodGroupManager = (*Groups)(nil)

// NewGroups makes a record of no pods, for the cache that knows which have a node.
func NewGroups(c *Cache, lister schedulinglisters.PodGroupLister) *Groups {
	return &Groups{cache: c, lister: lister, all: map[cache.ObjectName]*members{}}
}

// Group is the name of a pod's group; false: it is of none.
func Group(pod *corev1.Pod) (cache.ObjectName, bool) {
	g := pod.Spec.SchedulingGroup
	if g == nil || g.PodGroupName == nil {
		return cache.ObjectName{}, false
	}
	return cache.NewObjectName(pod.Namespace, *g.PodGroupName), true
}

// Set has a pod be as the API has it. One that has ended is of its group no more.
func (g *Groups) Set(pod *corev1.Pod) {
	key, ok := Group(pod)
	if !ok {
		return
	}
	if Ended(pod) {
		g.Delete(pod)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[key]
	if m == nil {
		m = &members{pods: map[types.UID]*corev1.Pod{}}
		g.all[key] = m
	}
	m.remove(pod.UID)
	m.pods[pod.UID] = pod
	if pod.Spec.NodeName != "" {
		m.bound++
	}
}

// Delete has a pod be gone.
func (g *Groups) Delete(pod *corev1.Pod) {
	key, ok := Group(pod)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[key]
	if m == nil {
		return
	}
	m.remove(pod.UID)
	if len(m.pods) == 0 {
		delete(g.all, key)
	}
}

// Bound is how many pods of a group have a node by what the API says.
func (g *Groups) Bound(key cache.ObjectName) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.all[key]; m != nil {
		return m.bound
	}
	return 0
}

// Gang is the group that a pod gets a node with or not at all; nil: it is scheduled by itself.
func (g *Groups) Gang(pod *corev1.Pod) *schedulingv1beta1.PodGroup {
	key, ok := Group(pod)
	if !ok {
		return nil
	}
	group, err := g.PodGroups().Get(key.Namespace, key.Name)
	if err != nil || group.Spec.SchedulingPolicy.Gang == nil {
		return nil
	}
	return group
}

// Served says whether the API has groups at all. Where it has none, pods are of none.
func (g *Groups) Served() bool { return g != nil && g.lister != nil }

// PodGroupStates implements [fwk.PodGroupManager].
func (g *Groups) PodGroupStates() fwk.PodGroupStateLister { return groupStates{g} }

// PodGroups implements [fwk.PodGroupManager].
func (g *Groups) PodGroups() fwk.PodGroupLister {
	if g == nil || g.lister == nil {
		return noGroups{}
	}
	return podGroups{g.lister}
}

// CompositePodGroupStates implements [fwk.PodGroupManager]. Groups of groups are alpha, and there are none.
func (g *Groups) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

// CompositePodGroups implements [fwk.PodGroupManager].
func (g *Groups) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

// BuildHierarchySnapshotFromPod implements [fwk.PodGroupManager]: no group is in another one.
func (g *Groups) BuildHierarchySnapshotFromPod(*corev1.Pod) (fwk.PodGroupManager, error) {
	return g, nil
}

// GetRootKeyForGroup implements [fwk.PodGroupManager].
func (g *Groups) GetRootKeyForGroup(key fwk.EntityKey) (fwk.EntityKey, bool, error) {
	_, err := g.PodGroups().Get(key.Namespace, key.Name)
	return key, err == nil, nil
}

type podGroups struct {
	lister schedulinglisters.PodGroupLister
}

// Get implements [fwk.PodGroupLister].
func (p podGroups) Get(namespace, name string) (*schedulingv1beta1.PodGroup, error) {
	return p.lister.PodGroups(namespace).Get(name) // who asks looks for the API's own error
}

type groupStates struct{ g *Groups }

// Get implements [fwk.PodGroupStateLister]. How many pods there are is as it is now; which have a node is looked at
// when somebody wants to know: most only count, for each of thousands of pods.
func (s groupStates) Get(namespace, name string) (fwk.PodGroupState, error) {
	if s.g == nil {
		return nil, fwk.ErrNotFound
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	key := cache.NewObjectName(namespace, name)
	m := s.g.all[key]
	if m == nil {
		return nil, fwk.ErrNotFound
	}
	state := &groupState{count: len(m.pods)}
	state.look = sync.OnceFunc(func() { state.fill(s.g, key) })
	return state, nil
}

// groupState is a group's pods by whether they have a node.
type groupState struct {
	count int
	look  func() // fills in what follows

	all, assumed, assigned sets.Set[types.UID]
	waiting                map[string]*corev1.Pod
	scheduled              []*corev1.Pod
}

func (s *groupState) fill(g *Groups, key cache.ObjectName) {
	s.all, s.assumed, s.assigned, s.waiting = sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID](), map[string]*corev1.Pod{}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.all[key]
	if m == nil {
		return
	}
	for uid, pod := range m.pods {
		s.all.Insert(uid)
		placed := g.cache.Pod(uid)
		switch {
		case placed == nil && pod.Spec.NodeName == "":
			s.waiting[cache.MetaObjectToName(pod).String()] = pod
			continue
		case placed == nil:
			placed = pod
		case g.cache.Assumed(uid):
			s.assumed.Insert(uid)
			s.scheduled = append(s.scheduled, placed)
			continue
		}
		s.assigned.Insert(uid)
		s.scheduled = append(s.scheduled, placed)
	}
}

var _ fwk.PodGroupState = (*groupState)(nil)

// AllPods implements [fwk.PodGroupState].
func (s *groupState) AllPods() sets.Set[types.UID] { s.look(); return s.all }

// AllPodsCount implements [fwk.PodGroupState].
func (s *groupState) AllPodsCount() int { return s.count }

// UnscheduledPods implements [fwk.PodGroupState].
func (s *groupState) UnscheduledPods() map[string]*corev1.Pod { s.look(); return s.waiting }

// AssumedPods implements [fwk.PodGroupState].
func (s *groupState) AssumedPods() sets.Set[types.UID] { s.look(); return s.assumed }

// AssignedPods implements [fwk.PodGroupState].
func (s *groupState) AssignedPods() sets.Set[types.UID] { s.look(); return s.assigned }

// ScheduledPods implements [fwk.PodGroupState].
func (s *groupState) ScheduledPods() []*corev1.Pod { s.look(); return s.scheduled }

// ScheduledPodsCount implements [fwk.PodGroupState].
func (s *groupState) ScheduledPodsCount() int { s.look(); return len(s.scheduled) }

// SetGroups has a snapshot tell of groups.
func (s *Snapshot) SetGroups(g *Groups) { s.groups = g }

// PodGroupStates implements [fwk.SharedLister]. Groups are told of as they are: who gives nodes to pods of one is the
// only one who changes them meanwhile.
func (s *Snapshot) PodGroupStates() fwk.PodGroupStateLister { return s.groups.PodGroupStates() }

// PodGroups implements [fwk.SharedLister].
func (s *Snapshot) PodGroups() fwk.PodGroupLister { return s.groups.PodGroups() }

// CompositePodGroupStates implements [fwk.SharedLister].
func (s *Snapshot) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

// CompositePodGroups implements [fwk.SharedLister].
func (s *Snapshot) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

type (
	noGroups          struct{}
	noCompositeStates struct{}
	noCompositeGroups struct{}
)

func (noGroups) Get(string, string) (*schedulingv1beta1.PodGroup, error) { return nil, fwk.ErrNotFound }

func (noCompositeStates) Get(string, string) (fwk.CompositePodGroupState, error) {
	return nil, fwk.ErrNotFound
}

func (noCompositeGroups) Get(string, string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, fwk.ErrNotFound
}
