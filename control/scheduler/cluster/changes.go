package cluster

import "slices"

// Mark is a moment in the life of a snapshot.
type Mark struct {
	logged, wide, opinions int64
}

// Changes are what has changed between a moment and now.
type Changes struct {
	// Nodes are those that are another way, some more than once.
	Nodes []string
	// Opinions says that pods have come or gone that are for or against pods on other nodes.
	Opinions bool
}

// changes are the nodes that a snapshot was brought up to date with lately.
type changes struct {
	log    []string // the latest last
	logged int64    // how many there ever were
	// wide and opinions count what has changed and concerns other nodes than those that have: see [Cache].
	wide, opinions int64
}

// mostChanges is how many are kept. Who asks looks at each of these nodes, and is better off looking at all of them
// again when it is so many.
const mostChanges = 512

func (c *changes) add(node string) {
	if len(c.log) >= 2*mostChanges {
		c.log = slices.Delete(c.log, 0, mostChanges)
	}
	c.log = append(c.log, node)
	c.logged++
}

// Mark is now, for [Snapshot.Since].
func (s *Snapshot) Mark() Mark { return Mark{s.changes.logged, s.changes.wide, s.changes.opinions} }

// Since is what has changed since a moment. Not known: it is too much, or concerns all nodes, as when nodes come or go,
// or their labels or images change.
func (s *Snapshot) Since(m Mark) (c Changes, known bool) {
	n := s.changes.logged - m.logged
	if s.changes.wide != m.wide || n > mostChanges || n > int64(len(s.changes.log)) {
		return Changes{}, false
	}
	return Changes{s.changes.log[int64(len(s.changes.log))-n:], s.changes.opinions != m.opinions}, true
}
