package plan

import (
	"time"

	"github.com/berth-node/berth/agent/status"
)

// finish plans for a pod that is over by itself: its sidecars end, then what it does not need any more is given back. Its dead
// containers stay, for their logs.
func (p *planner) finish() {
	if p.endContainers(p.Now, p.grace()) {
		return
	}
	p.Over = true
	if !p.Finished {
		p.once(Finish)
		return
	}
	p.collect()
}

// ending plans for a pod that is to end.
func (p *planner) ending() {
	if p.endContainers(p.End.Since, p.End.Grace) {
		return
	}
	// What is being started is cut off, and may still turn out to run.
	for _, s := range p.Busy {
		if s.Kind != Teardown && (s.Kind != Finish || !p.End.Keep) {
			return
		}
	}
	p.Over = true
	switch {
	case p.End.Keep && !p.Finished:
		p.once(Finish)
	case p.End.Keep:
		p.collect()
	case p.Torn:
		p.Gone = true
	default:
		p.once(Teardown)
	}
}

func (p *planner) once(k Kind) {
	if _, wait := p.blocked(string(k)); !wait {
		p.add(Step{Kind: k})
	}
}

// endContainers ends what runs: first all but the sidecars at once, then the sidecars in reverse order of their start. It says
// whether anything still runs.
func (p *planner) endContainers(since time.Time, grace time.Duration) bool {
	sidecars := map[string]bool{}
	for i := range p.Pod.Spec.InitContainers {
		if c := &p.Pod.Spec.InitContainers[i]; status.IsSidecar(c) {
			sidecars[c.Name] = true
		}
	}
	any := false
	for name, list := range p.Seen.Containers {
		for i := range list {
			if !sidecars[name] && alive(&list[i]) {
				any = true
				p.killBy(&list[i], since.Add(grace), grace == 0, "Stopping container "+name)
			}
		}
	}
	if any || len(sidecars) == 0 {
		return any
	}
	return p.endSidecars(since, grace)
}

func (p *planner) endSidecars(since time.Time, grace time.Duration) bool {
	for i := len(p.Pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &p.Pod.Spec.InitContainers[i]
		for j := range p.Seen.Containers[c.Name] {
			if one := &p.Seen.Containers[c.Name][j]; alive(one) {
				p.killBy(one, since.Add(grace), grace == 0, "Stopping container "+c.Name)
				return true
			}
		}
	}
	return false
}
