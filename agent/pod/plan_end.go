package pod

import (
	"time"

	"github.com/berth-node/berth/agent/status"
)

// finish plans for a pod that is over by itself: its sidecars end, then what it does not need any more is given back. Its dead
// containers stay, for their logs.
func (p *planner) finish() {
	if p.endContainers(p.now, p.grace()) {
		return
	}
	p.over = true
	if !p.finished {
		p.once(stepFinish)
		return
	}
	p.collect()
}

// ending plans for a pod that is to end.
func (p *planner) ending() {
	if p.endContainers(p.end.since, p.end.grace) {
		return
	}
	// What is being started is cut off, and may still turn out to run.
	for _, s := range p.busy {
		if s.kind != stepTeardown && (s.kind != stepFinish || !p.end.keep) {
			return
		}
	}
	p.over = true
	switch {
	case p.end.keep && !p.finished:
		p.once(stepFinish)
	case p.end.keep:
		p.collect()
	case p.torn:
		p.gone = true
	default:
		p.once(stepTeardown)
	}
}

func (p *planner) once(k kind) {
	if _, wait := p.blocked(string(k)); !wait {
		p.add(step{kind: k})
	}
}

// endContainers ends what runs: first all but the sidecars at once, then the sidecars in reverse order of their start. It says
// whether anything still runs.
func (p *planner) endContainers(since time.Time, grace time.Duration) bool {
	sidecars := map[string]bool{}
	for i := range p.pod.Spec.InitContainers {
		if c := &p.pod.Spec.InitContainers[i]; status.IsSidecar(c) {
			sidecars[c.Name] = true
		}
	}
	any := false
	for name, list := range p.seen.containers {
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
	for i := len(p.pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &p.pod.Spec.InitContainers[i]
		for j := range p.seen.containers[c.Name] {
			if one := &p.seen.containers[c.Name][j]; alive(one) {
				p.killBy(one, since.Add(grace), grace == 0, "Stopping container "+c.Name)
				return true
			}
		}
	}
	return false
}
