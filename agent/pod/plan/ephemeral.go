package plan

import (
	"fmt"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// ephemeral starts the containers that were added to the pod, whatever its own do. They run once: one that was started
// is never started again, and one in a sandbox that is gone has gone with it.
func (r *starter) ephemeral() {
	for i := range r.view.Pod.Spec.EphemeralContainers {
		e := &r.view.Pod.Spec.EphemeralContainers[i]
		c := spec.AsContainer(e)
		if now := r.view.Seen.Latest(c.Name); now != nil {
			f, no := r.view.Refused[now.GetId()]
			if no {
				r.draft.out.Waiting[c.Name] = status.Waiting{Reason: f.Reason, Message: f.Message}
			}
			if no || now.GetState() != Created || r.now.past(now) {
				continue
			}
		}
		if t := e.TargetContainerName; t != "" && r.now.target(t) == nil {
			r.draft.out.Waiting[c.Name] = status.Waiting{
				Reason: ReasonConfig, Message: fmt.Sprintf("unable to find target container %q: it is not running", t),
			}
			continue
		}
		r.start(c)
	}
}
