package plan

import (
	"fmt"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// ephemeral starts the containers that were added to the pod, whatever its own do. They run once: one that was started is never
// started again, and one in a sandbox that is gone has gone with it.
func (p *planner) ephemeral() {
	for i := range p.Pod.Spec.EphemeralContainers {
		e := &p.Pod.Spec.EphemeralContainers[i]
		c := spec.AsContainer(e)
		if now := p.Seen.Latest(c.Name); now != nil {
			f, no := p.Refused[now.GetId()]
			if no {
				p.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
			}
			if no || now.GetState() != Created || p.past(now) {
				continue
			}
		}
		if t := e.TargetContainerName; t != "" && p.target(t) == nil {
			p.Waiting[c.Name] = status.Waiting{Reason: ReasonConfig, Message: fmt.Sprintf("unable to find target container %q: it is not running", t)}
			continue
		}
		p.start(c)
	}
}

// target is the container of that name that runs.
func (p *planner) target(name string) *Container {
	if now := p.Seen.Latest(name); now != nil && now.GetState() == Running && p.inSandbox(now) {
		return now
	}
	return nil
}
