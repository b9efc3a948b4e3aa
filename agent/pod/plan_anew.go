package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/status"
)

// A container's rule may send all containers of its pod back to the start, init containers too. What says so is the container that
// has exited: whatever was made before its end is past, so that nothing has to be remembered, and an agent that was restarted in
// between comes to the same plan.

// startsAnew finds the last exit that has sent the pod back, and ends what still runs from before. It says whether something does.
func (p *planner) startsAnew() bool {
	p.anew = p.trigger()
	if p.anew == nil {
		return false
	}
	runs, waits := false, false
	for name, list := range p.seen.containers {
		for i := range list {
			if c := &list[i]; p.past(c) && alive(c) {
				runs = true
				p.kill(c, p.grace(), "Stopping container "+name+", since all containers of the pod are restarted")
			}
		}
		waits = waits || p.past(&list[0]) && !isEphemeral(p.pod, name) // which does not come back
	}
	p.restarting = &waits
	return runs
}

func (p *planner) trigger() *container {
	var last *container
	for _, list := range [][]corev1.Container{p.pod.Spec.InitContainers, p.pod.Spec.Containers} {
		for i := range list {
			for j := range p.seen.containers[list[i].Name] {
				c := &p.seen.containers[list[i].Name][j]
				if c.GetState() == exited && status.RestartsAll(&list[i], c.GetExitCode()) && (last == nil || c.GetFinishedAt() > last.GetFinishedAt()) {
					last = c
				}
			}
		}
	}
	return last
}

// past says whether a container is from before all were sent back.
func (p *planner) past(c *container) bool {
	return p.anew != nil && c.GetCreatedAt() <= p.anew.GetFinishedAt()
}
