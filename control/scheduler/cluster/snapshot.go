package cluster

import (
	"fmt"
	"sync/atomic"

	fwk "k8s.io/kube-scheduler/framework"
)

// Snapshot is the nodes as they were at one time. It is brought up to date between two attempts to schedule, by who
// attempts, and is read only during one: nobody keeps any of it.
type Snapshot struct {
	nodes      map[string]*NodeInfo
	all        []fwk.NodeInfo            // in order
	parts      atomic.Pointer[nodeParts] // of these; nil: nobody has asked since they have changed
	claims     map[string]int            // how many nodes use each
	generation int64
	ordered    int64
	groups     *Groups // nil: there are none
	// before is how nodes were that are another way meanwhile; nil: none may be. mutations is how many there were.
	before    map[string]*NodeInfo
	mutations int64
	changes   changes
}

// nodeParts are the nodes that have pods of a kind, in order.
type nodeParts struct {
	affinity, antiAffinity, beyondHost []fwk.NodeInfo
}

var (
	_ fwk.SharedLister      = (*Snapshot)(nil)
	_ fwk.NodeInfoLister    = nodeInfos{}
	_ fwk.StorageInfoLister = (*Snapshot)(nil)
)

// NewEmptySnapshot is a snapshot of nothing, for [Cache.Update].
func NewEmptySnapshot() *Snapshot {
	return &Snapshot{nodes: map[string]*NodeInfo{}, claims: map[string]int{}, ordered: -1}
}

// Update brings a snapshot up to date. Between two snapshots only nodes that have changed are copied.
func (c *Cache) Update(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rebuild := s.ordered != c.order.changed
	parts := false
	for e := c.newest; e != nil && e.info.generation > s.generation; e = e.older {
		if e.info.node == nil {
			continue
		}
		if e.pictured <= c.images.changed {
			e.info.images, e.pictured = c.images.of(e.info.node), c.images.changed+1
		}
		parts = s.set(e.name, e.info) || parts
		s.changes.add(e.name)
	}
	s.generation, s.changes.wide, s.changes.opinions = c.generation, c.wide, c.opinions
	if len(s.nodes) > c.objects {
		for name := range s.nodes {
			if e := c.nodes[name]; e == nil || e.info.node == nil {
				s.countClaims(s.nodes[name].claims, -1)
				delete(s.nodes, name)
			}
		}
		rebuild = true
	}
	switch {
	case rebuild:
		s.ordered = c.order.changed
		s.list(c.order.names())
	case parts:
		s.parts.Store(nil)
	}
}

// set copies a node, and says whether it belongs to other lists now.
func (s *Snapshot) set(name string, info *NodeInfo) bool {
	had := s.nodes[name]
	if had == nil {
		c := info.clone()
		s.nodes[name] = c
		s.countClaims(c.claims, 1)
		return true
	}
	parts := len(had.pods.affinity) == 0 != (len(info.pods.affinity) == 0) ||
		len(had.pods.antiAffinity) == 0 != (len(info.pods.antiAffinity) == 0) ||
		len(had.pods.beyondHost) == 0 != (len(info.pods.beyondHost) == 0)
	s.countClaims(had.claims, -1)
	// Lists hold pointers to nodes, which stay what they are.
	had.become(info)
	s.countClaims(had.claims, 1)
	return parts
}

func (s *Snapshot) countClaims(claims map[string]int, sign int) {
	for key := range claims {
		if s.claims[key] += sign; s.claims[key] <= 0 {
			delete(s.claims, key)
		}
	}
}

func (s *Snapshot) list(names []string) {
	s.all = make([]fwk.NodeInfo, 0, len(names))
	for _, name := range names {
		if n := s.nodes[name]; n != nil {
			s.all = append(s.all, n)
		}
	}
	s.parts.Store(nil)
}

// listParts are made when somebody asks: of thousands of nodes one after the other gets its first pod of a kind.
func (s *Snapshot) listParts() *nodeParts {
	if p := s.parts.Load(); p != nil {
		return p
	}
	p := &nodeParts{}
	for _, n := range s.all {
		if len(n.GetPodsWithAffinity()) > 0 {
			p.affinity = append(p.affinity, n)
		}
		if len(n.GetPodsWithRequiredAntiAffinity()) > 0 {
			p.antiAffinity = append(p.antiAffinity, n)
		}
		if len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0 {
			p.beyondHost = append(p.beyondHost, n)
		}
	}
	s.parts.Store(p)
	return p
}

// Len is how many nodes there are.
func (s *Snapshot) Len() int { return len(s.all) }

// NodeInfos implements [fwk.SharedLister].
func (s *Snapshot) NodeInfos() fwk.NodeInfoLister { return nodeInfos{s} }

// StorageInfos implements [fwk.SharedLister].
func (s *Snapshot) StorageInfos() fwk.StorageInfoLister { return s }

// IsPVCUsedByPods implements [fwk.StorageInfoLister].
func (s *Snapshot) IsPVCUsedByPods(key string) bool { return s.claims[key] > 0 }

// nodeInfos lists the nodes of a snapshot.
type nodeInfos struct{ s *Snapshot }

func (n nodeInfos) List() ([]fwk.NodeInfo, error) { return n.s.all, nil }

func (n nodeInfos) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return n.s.listParts().affinity, nil
}

func (n nodeInfos) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return n.s.listParts().antiAffinity, nil
}

func (n nodeInfos) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return n.s.listParts().beyondHost, nil
}

func (n nodeInfos) Get(name string) (fwk.NodeInfo, error) {
	if info := n.s.nodes[name]; info != nil {
		return info, nil
	}
	return nil, fmt.Errorf("find node %q: it is not in the snapshot", name)
}
