package plan

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// Resized is the record of a pod that was resized: what has been made of it. A pod that never was has none.
type Resized struct {
	// Acting says that what was allocated has not been given to everything yet.
	Acting bool `json:"acting,omitempty"`
	// Pod is what the pod as a whole has, if its specification says anything of that.
	Pod *corev1.ResourceRequirements `json:"pod,omitempty"`
	// Containers have what they were resized to, by ID.
	Containers map[string]corev1.ResourceRequirements `json:"containers,omitempty"`
}

// Clone is a copy with a map of its own.
func (r *Resized) Clone() *Resized {
	out := &Resized{Acting: r.Acting, Pod: r.Pod, Containers: maps.Clone(r.Containers)}
	if out.Containers == nil {
		out.Containers = map[string]corev1.ResourceRequirements{}
	}
	return out
}

// Forget drops containers that are not there any more.
func (r *Resized) Forget(now *Observed) {
	maps.DeleteFunc(r.Containers, func(id string, _ corev1.ResourceRequirements) bool { return now.Find(id) == nil })
}

// Acknowledged is what a container has been given.
func (r *Resized) Acknowledged(c *Container) (corev1.ResourceRequirements, bool) {
	if have, ok := r.Containers[c.GetId()]; ok {
		return have, true
	}
	return spec.MadeWith(c.GetAnnotations())
}

// resize plans for containers that run with other resources than are allocated. It says whether nothing may be started
// before that is done, because what is started has its place in the pod's new limits.
func (p *planner) resize() (waits bool) {
	stale, kills := p.view.Resized.Acting, false
	for _, list := range [][]corev1.Container{p.view.Pod.Spec.InitContainers, p.view.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			now := p.view.Seen.Latest(c.Name)
			if now == nil || now.GetState() != Running || !p.now.inSandbox(now) {
				continue
			}
			had, known := p.view.Resized.Acknowledged(now)
			switch {
			case !known || EqualResources(&had, &c.Resources):
			case restartsToResize(c, &had):
				p.draft.kill(now, p.now.grace(), fmt.Sprintf("Container %s resize requires restart", c.Name))
				kills = true
			default:
				stale = true
			}
		}
	}
	s := Step{Kind: Resize}
	if kills || p.draft.does(s.Key()) {
		return true
	}
	if _, wait := p.draft.blocked(s.Key()); !stale || wait {
		return false
	}
	if p.draft.does(string(Prepare)) {
		return false // it makes the pod's group
	}
	p.draft.add(s)
	return true
}

// restartsToResize says whether the container wants to be restarted for what has changed.
func restartsToResize(c *corev1.Container, had *corev1.ResourceRequirements) bool {
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy != corev1.RestartContainer {
			continue
		}
		if !equalQuantity(had.Requests, c.Resources.Requests, p.ResourceName) ||
			!equalQuantity(had.Limits, c.Resources.Limits, p.ResourceName) {
			return true
		}
	}
	return false
}

func equalQuantity(a, b corev1.ResourceList, name corev1.ResourceName) bool {
	x, inA := a[name]
	y, inB := b[name]
	return inA == inB && x.Cmp(y) == 0
}

// EqualResources compares what a resize can change.
func EqualResources(a, b *corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if !equalQuantity(a.Requests, b.Requests, name) || !equalQuantity(a.Limits, b.Limits, name) {
			return false
		}
	}
	return true
}
