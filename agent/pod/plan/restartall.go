package plan

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// A container's rule may send all containers of its pod back to the start, init containers too. What says so is the
// container that has exited. Each container carries the number of its round, which is how often the pod had been sent
// back when its start was planned: whatever is of the round of that exit is past. So nothing else has to be remembered,
// and an agent that was restarted in between comes to the same plan. Times would not do: what was being started when
// the other exited may be made after that.

// restartsAll ends what still runs from before the last exit that has sent the pod back. It says whether something
// does, or may yet.
func (p *planner) restartsAll() bool {
	if p.now.trigger == nil {
		return false
	}
	runs, waits := false, false
	for _, s := range p.view.Busy {
		runs = runs || s.Kind == Start && s.Round < p.now.round
	}
	for name, list := range p.view.Seen.Containers {
		for i := range list {
			if c := &list[i]; p.now.past(c) && alive(c) {
				runs = true
				p.draft.kill(c, p.now.grace(), "Stopping container "+name+", since all containers of the pod are restarted")
			}
		}
		waits = waits || p.now.past(&list[0]) && !spec.IsEphemeral(p.view.Pod, name) // which does not come back
	}
	p.draft.out.Restarting = &waits
	return runs
}

// trigger is the exit of the latest round that has sent the pod back, nil when there is none, and the round that the
// pod is in.
func trigger(v *View) (last *Container, round uint32) {
	for _, list := range [][]corev1.Container{v.Pod.Spec.InitContainers, v.Pod.Spec.Containers} {
		for i := range list {
			for j := range v.Seen.Containers[list[i].Name] {
				c := &v.Seen.Containers[list[i].Name][j]
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

func roundOf(c *Container) uint32 { return spec.Round(c.GetAnnotations()) }
