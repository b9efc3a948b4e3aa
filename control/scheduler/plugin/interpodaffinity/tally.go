package interpodaffinity

import "maps"

// tally counts pods in the domains of one topology. What was counted at first is shared by clones of the state, of
// which preemption makes one a node; what came and went since is each one's own.
type tally struct {
	topology string
	first    map[string]int64
	all      int64 // of first, in the sum of all nodes
	since    map[string]int64
}

func (t *tally) at(domain string) int64 {
	return t.first[domain] + t.since[domain]
}

// change is by one pod, after the first count.
func (t *tally) change(domain string, by int64) {
	if t.since == nil {
		t.since = map[string]int64{}
	}
	t.since[domain] += by
}

// tallies are of several topologies, a few at most.
type tallies []tally

// of is the tally of a topology, made if there is none yet.
func (t *tallies) of(topology string) *tally {
	for i := range *t {
		if (*t)[i].topology == topology {
			return &(*t)[i]
		}
	}
	*t = append(*t, tally{topology: topology, first: map[string]int64{}})
	return &(*t)[len(*t)-1]
}

// at is a domain's count, of which filters ask in parallel.
func (t tallies) at(topology, domain string) int64 {
	for i := range t {
		if t[i].topology == topology {
			return t[i].at(domain)
		}
	}
	return 0
}

// count is of n pods on a node with these labels, in the first count. A node without the label is in no domain.
func (t *tallies) count(topology string, labels map[string]string, n int64) {
	if domain, ok := labels[topology]; ok {
		t.of(topology).first[domain] += n
	}
}

func (t *tallies) change(topology string, labels map[string]string, by int64) {
	if domain, ok := labels[topology]; ok {
		t.of(topology).change(domain, by)
	}
}

// none says that no pod was counted first.
func (t tallies) none() bool {
	for i := range t {
		if len(t[i].first) > 0 {
			return false
		}
	}
	return true
}

// any says that some pod is in a domain of a node with these labels.
func (t tallies) any(labels map[string]string) bool {
	for i := range t {
		if domain, ok := labels[t[i].topology]; ok && t[i].at(domain) > 0 {
			return true
		}
	}
	return false
}

// sum is over the domains of a node with these labels.
func (t tallies) sum(labels map[string]string) int64 {
	n := int64(0)
	for i := range t {
		if domain, ok := labels[t[i].topology]; ok {
			n += t[i].at(domain)
		}
	}
	return n
}

func (t tallies) clone() tallies {
	c := make(tallies, len(t))
	for i := range t {
		c[i] = tally{t[i].topology, t[i].first, t[i].all, maps.Clone(t[i].since)}
	}
	return c
}
