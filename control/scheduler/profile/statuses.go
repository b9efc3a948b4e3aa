package profile

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// Statuses are what nodes were rejected for.
type Statuses struct {
	nodes  map[string]*fwk.Status
	absent *fwk.Status // of nodes that nobody has looked at
}

var _ fwk.NodeToStatusReader = (*Statuses)(nil)

// NewStatuses are those of nodes that nobody has looked at yet.
func NewStatuses() *Statuses {
	return &Statuses{nodes: map[string]*fwk.Status{}, absent: fwk.NewStatus(fwk.UnschedulableAndUnresolvable)}
}

// Set notes what a node was rejected for.
func (s *Statuses) Set(node string, status *fwk.Status) { s.nodes[node] = status }

// SetAbsent notes what all nodes were rejected for that are not noted themselves.
func (s *Statuses) SetAbsent(status *fwk.Status) { s.absent = status }

// Len is how many nodes are noted themselves.
func (s *Statuses) Len() int { return len(s.nodes) }

// Each calls f with the nodes that are noted themselves.
func (s *Statuses) Each(f func(node string, status *fwk.Status)) {
	for node, status := range s.nodes {
		f(node, status)
	}
}

// Absent is what all other nodes were rejected for.
func (s *Statuses) Absent() *fwk.Status { return s.absent }

// Get implements [fwk.NodeToStatusReader].
func (s *Statuses) Get(node string) *fwk.Status {
	if status, ok := s.nodes[node]; ok {
		return status
	}
	return s.absent
}

// NodesForStatusCode implements [fwk.NodeToStatusReader].
func (s *Statuses) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	if s.absent.Code() != code {
		var found []fwk.NodeInfo
		for node, status := range s.nodes {
			if status.Code() != code {
				continue
			}
			if info, err := lister.Get(node); err == nil {
				found = append(found, info)
			}
		}
		return found, nil
	}
	all, err := lister.List()
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	found := make([]fwk.NodeInfo, 0, len(all))
	for _, info := range all {
		if s.Get(info.Node().Name).Code() == code {
			found = append(found, info)
		}
	}
	return found, nil
}

// Rejection is why no node was found for a pod.
type Rejection struct {
	Nodes    int // that there are
	Statuses *Statuses
	// Unschedulable and Pending are the plugins because of which.
	Unschedulable, Pending sets.Set[string]
	// Before is what was said before nodes were looked at, and After after that.
	Before, After string
}

// NewRejection is that of a pod of which nothing is known yet.
func NewRejection(nodes int) *Rejection {
	return &Rejection{Nodes: nodes, Statuses: NewStatuses(), Unschedulable: sets.New[string](), Pending: sets.New[string]()}
}

// Blame notes the plugin of a status.
func (r *Rejection) Blame(status *fwk.Status) {
	switch {
	case status == nil || status.Plugin() == "":
	case status.Code() == fwk.Pending:
		r.Pending.Insert(status.Plugin())
	case status.IsRejected():
		r.Unschedulable.Insert(status.Plugin())
	}
}
