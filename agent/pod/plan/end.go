package plan

import (
	"time"

	"github.com/berth-node/berth/agent/status"
)

// finish plans for a pod that is over by itself: its sidecars end, then what it does not need any more is given back.
// Its dead containers stay, for their logs.
func (p *planner) finish() {
	if p.endContainers(p.view.Now, p.now.grace()) {
		return
	}
	p.draft.out.Over = true
	if !p.view.Finished {
		p.draft.try(Step{Kind: Finish})
		return
	}
	p.collect()
}

// ending plans for a pod that is to end.
func (p *planner) ending() {
	if p.endContainers(p.view.End.Since, p.view.End.Grace) {
		return
	}
	// What is being started is cut off, and may still turn out to run.
	for _, s := range p.view.Busy {
		if s.Kind != Teardown && (s.Kind != Finish || !p.view.End.Keep) {
			return
		}
	}
	p.draft.out.Over = true
	switch {
	case p.view.End.Shed && p.shed():
	case p.view.End.Keep && !p.view.Finished:
		p.draft.try(Step{Kind: Finish})
	case p.view.End.Keep:
		p.collect()
	case p.view.Torn:
		p.draft.out.Gone = true
	default:
		p.draft.try(Step{Kind: Teardown})
	}
}

// shed removes the containers, and says whether there were any: of those that cannot be removed now the rest does not
// wait.
func (p *planner) shed() bool {
	any := false
	for name, list := range p.view.Seen.Containers {
		for i := range list {
			s := Step{Kind: Remove, Container: name, ID: list[i].GetId(), Attempt: list[i].GetMetadata().GetAttempt()}
			if _, wait := p.draft.blocked(s.Key()); !wait {
				p.draft.add(s)
				any = true
			}
		}
	}
	return any
}

// endContainers ends what runs: first all but the sidecars at once, then the sidecars in reverse order of their start.
// It says whether anything still runs.
func (p *planner) endContainers(since time.Time, grace time.Duration) bool {
	sidecars := map[string]bool{}
	for i := range p.view.Pod.Spec.InitContainers {
		if c := &p.view.Pod.Spec.InitContainers[i]; status.IsSidecar(c) {
			sidecars[c.Name] = true
		}
	}
	any := false
	for name, list := range p.view.Seen.Containers {
		for i := range list {
			if !sidecars[name] && alive(&list[i]) {
				any = true
				p.draft.killBy(&list[i], since.Add(grace), grace == 0, "Stopping container "+name)
			}
		}
	}
	if any || len(sidecars) == 0 {
		return any
	}
	return p.endSidecars(since, grace)
}

func (p *planner) endSidecars(since time.Time, grace time.Duration) bool {
	for i := len(p.view.Pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &p.view.Pod.Spec.InitContainers[i]
		for j := range p.view.Seen.Containers[c.Name] {
			if one := &p.view.Seen.Containers[c.Name][j]; alive(one) {
				p.draft.killBy(one, since.Add(grace), grace == 0, "Stopping container "+c.Name)
				return true
			}
		}
	}
	return false
}
