package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/status"
)

// ephemeral starts the containers that were added to the pod, whatever its own do. They run once: one that was started is never
// started again, and one in a sandbox that is gone has gone with it.
func (p *planner) ephemeral() {
	for i := range p.pod.Spec.EphemeralContainers {
		e := &p.pod.Spec.EphemeralContainers[i]
		c := asContainer(e)
		if now := p.seen.latest(c.Name); now != nil {
			f, no := p.refused[now.GetId()]
			if no {
				p.waiting[c.Name] = status.Waiting{Reason: f.reason, Message: f.message}
			}
			if no || now.GetState() != created || p.past(now) {
				continue
			}
		}
		if t := e.TargetContainerName; t != "" && p.target(t) == nil {
			p.waiting[c.Name] = status.Waiting{Reason: reasonConfig, Message: fmt.Sprintf("unable to find target container %q: it is not running", t)}
			continue
		}
		p.start(c)
	}
}

// target is the container of that name that runs.
func (p *planner) target(name string) *container {
	if now := p.seen.latest(name); now != nil && now.GetState() == running && p.inSandbox(now) {
		return now
	}
	return nil
}

// targetOf is the ID of the container whose processes an ephemeral one is to see, "" when it names none.
func (w *worker) targetOf(name string) string {
	for i := range w.pod.Spec.EphemeralContainers {
		e := &w.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		if now := w.seen.latest(e.TargetContainerName); now != nil {
			return now.GetId()
		}
	}
	return ""
}

// asContainer is an ephemeral container as what it has the fields of.
func asContainer(e *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&e.EphemeralContainerCommon)
}

func isEphemeral(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}
