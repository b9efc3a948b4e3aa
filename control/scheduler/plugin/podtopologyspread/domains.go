package podtopologyspread

import "maps"

// domains count pods in the domains of a topology, and know the least of the counts after every change without looking
// at all of them. What was counted at first is shared by clones, of which preemption makes one a node.
type domains struct {
	first map[string]int64
	since map[string]int64 // what came and went after that
	extra int              // domains that are only there
	of    map[int64]int    // how many domains have a count
	least int64
}

// newDomains takes the first count over.
func newDomains(first map[string]int64) domains {
	d := domains{first: first, of: map[int64]int{}}
	started := false
	for _, n := range first {
		d.of[n]++
		if !started || n < d.least {
			started, d.least = true, n
		}
	}
	return d
}

func (d *domains) clone() domains {
	c := *d
	c.since, c.of = maps.Clone(d.since), maps.Clone(d.of)
	return c
}

func (d *domains) len() int { return len(d.first) + d.extra }

func (d *domains) at(domain string) int64 { return d.first[domain] + d.since[domain] }

// change is by one pod more or less.
func (d *domains) change(domain string, by int64) {
	if d.since == nil {
		d.since = map[string]int64{}
	}
	_, counted := d.first[domain]
	_, changed := d.since[domain]
	before := d.at(domain)
	d.since[domain] += by
	if counted || changed {
		if d.of[before]--; d.of[before] == 0 {
			delete(d.of, before)
		}
	} else {
		d.extra++
	}
	after := before + by
	d.of[after]++
	if after < d.least || d.len() == 1 {
		d.least = after
		return
	}
	for d.of[d.least] == 0 {
		d.least++ // a domain left the least, by one: it is found at the next
	}
}
