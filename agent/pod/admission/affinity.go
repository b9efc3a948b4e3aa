package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Affinity refuses pods whose nodeSelector and required node affinity do not choose this node. For such a pod that is
// final: labels change with a restart of the agent only, or an API server has put the pod on the wrong node.
func Affinity(node string, labels func() map[string]string) Check {
	return func(r *Request) *Verdict {
		self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels()}}
		ok, err := nodeaffinity.GetRequiredNodeAffinity(r.Pod).Match(self)
		switch {
		case err != nil:
			return never("NodeAffinity", fmt.Sprintf("node affinity cannot be understood: %v", err))
		case !ok:
			return never("NodeAffinity",
				"the node's labels do not match the pod's nodeSelector or required node affinity; berth agent --node-labels sets more of them")
		}
		return nil
	}
}
