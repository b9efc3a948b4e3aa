package plan

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// A container's rule may send all containers of its pod back to the start, init containers too. What says so is the container that
// has exited. Each container carries the number of its round, which is how often the pod had been sent back when its start was
// planned: whatever is of the round of that exit is past. So nothing else has to be remembered, and an agent that was restarted in
// between comes to the same plan. Times would not do: what was being started when the other exited may be made after that.

// startsAnew finds the last exit that has sent the pod back, and ends what still runs from before. It says whether something does,
// or may yet.
func (p *planner) startsAnew() bool {
	p.anew, p.round = p.trigger()
	if p.anew == nil {
		return false
	}
	runs, waits := false, false
	for _, s := range p.Busy {
		runs = runs || s.Kind == Start && s.Round < p.round
	}
	for name, list := range p.Seen.Containers {
		for i := range list {
			if c := &list[i]; p.past(c) && alive(c) {
				runs = true
				p.kill(c, p.grace(), "Stopping container "+name+", since all containers of the pod are restarted")
			}
		}
		waits = waits || p.past(&list[0]) && !spec.IsEphemeral(p.Pod, name) // which does not come back
	}
	p.Restarting = &waits
	return runs
}

// trigger is the exit of the latest round that has sent the pod back, nil when there is none, and the round that the pod is in.
func (p *planner) trigger() (last *Container, round uint32) {
	for _, list := range [][]corev1.Container{p.Pod.Spec.InitContainers, p.Pod.Spec.Containers} {
		for i := range list {
			for j := range p.Seen.Containers[list[i].Name] {
				c := &p.Seen.Containers[list[i].Name][j]
				n := roundOf(c)
				if c.GetState() == Exited && status.RestartsAll(&list[i], c.GetExitCode()) {
					if last == nil || n > roundOf(last) {
						last = c
					}
					n++
				}
				round = max(round, n)
			}
		}
	}
	return last, round
}

// past says whether a container is from before all were sent back.
func (p *planner) past(c *Container) bool { return p.anew != nil && roundOf(c) <= roundOf(p.anew) }

func roundOf(c *Container) uint32 { return spec.Round(c.GetAnnotations()) }
