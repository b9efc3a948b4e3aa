package cluster

import "slices"

// Mark is a moment in the life of a snapshot.
type Mark struct {
	logged, wide int64
}

// changes are the nodes that a snapshot was brought up to date with lately.
type changes struct {
	log    []string // the latest last
	logged int64    // how many there ever were
	// wide counts what has changed and concerns other nodes than those that have: see [Cache].
	wide int64
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
func (s *Snapshot) Mark() Mark { return Mark{s.changes.logged, s.changes.wide} }

// Since are the nodes that have changed since a moment, some more than once. Not known: it is too many, or what has
// changed concerns others, too, as when nodes come or go, their labels or images change, or pods do that say which
// pods they want near them.
func (s *Snapshot) Since(m Mark) (nodes []string, known bool) {
	n := s.changes.logged - m.logged
	if s.changes.wide != m.wide || n > mostChanges || n > int64(len(s.changes.log)) {
		return nil, false
	}
	return s.changes.log[int64(len(s.changes.log))-n:], true
}
