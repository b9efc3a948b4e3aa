// Package admission says what the node has against a pod, beside those that are here. It is a list of checks, each of
// which knows one reason; who runs pods puts the list together and says what there is on the node.
package admission

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/status"
)

// Verdict is what the node has against a pod that wants to run here.
type Verdict struct {
	status.Waiting
	Final bool // it will never be another one for this pod
}

// Request is the question whether a pod may run. What becomes of one that may not for the moment depends on its origin.
type Request struct {
	Pod *corev1.Pod
	Ran bool // it runs already: an agent's restart is no event in its life
}

// Key is the pod's name.
func (r *Request) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name}
}

// Check says what it has against a pod; nil: nothing.
type Check func(*Request) *Verdict

// Checks are asked one after the other. The last ones may act for a pod that nothing else is in the way of.
type Checks []Check

// Judge returns what the first check has against a pod that has anything against it.
func (all Checks) Judge(r *Request) *Verdict {
	for _, check := range all {
		if v := check(r); v != nil {
			return v
		}
	}
	return nil
}

// ForNew is a check that has nothing against pods that run already.
func ForNew(check Check) Check {
	return func(r *Request) *Verdict {
		if r.Ran {
			return nil
		}
		return check(r)
	}
}

// waits is a verdict that may be another one later.
func waits(reason, message string) *Verdict {
	return &Verdict{Waiting: status.Waiting{Reason: reason, Message: message}}
}

// never is a verdict that is final.
func never(reason, message string) *Verdict {
	return &Verdict{Waiting: status.Waiting{Reason: reason, Message: message}, Final: true}
}

// Share is what an admitted pod has of the node. It is worked out once: whoever comes later is judged beside all that
// are here.
type Share struct {
	Pod      *corev1.Pod // as it came
	requests corev1.ResourceList
	ports    []hostPort
}

// ShareOf works out what a pod has.
func ShareOf(pod *corev1.Pod) *Share {
	return &Share{pod, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), hostPorts(pod)}
}

// Shutdown has pods wait that come while the machine is being shut down.
func Shutdown(closed func() bool) Check {
	return func(*Request) *Verdict {
		if !closed() {
			return nil
		}
		return waits("NodeShutdown", "Pod was rejected as the node is shutting down.")
	}
}

// PriorityClass has a pod of a manifest wait for the priority class that it names; an API server has looked for it.
func PriorityClass(r *Request) *Verdict {
	c := r.Pod.Spec.PriorityClassName
	if c == "" || r.Pod.Spec.Priority != nil || !desired.RulesOf(r.Pod).Manifest {
		return nil
	}
	return waits("PriorityClassNotFound", "no PriorityClass with name "+c+" was found; the pod starts when there is one")
}
