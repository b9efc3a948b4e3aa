package admission

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-node/berth/agent/desired"
)

// Taints refuses pods of an API server that do not tolerate a taint of the node by which pods have to go (NoExecute):
// somebody has put such a pod here past the scheduler, or before the taint was. Whoever writes a file on the node means
// this node.
func Taints(taints func() []corev1.Taint) Check {
	noExecute := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	return func(r *Request) *Verdict {
		if !desired.OriginOf(r.Pod).Cluster() {
			return nil
		}
		taint, found := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints(), r.Pod.Spec.Tolerations, noExecute, true)
		if !found {
			return nil
		}
		return never("TaintToleration", fmt.Sprintf("the node has the taint %s, which the pod does not tolerate", taint.ToString()))
	}
}
