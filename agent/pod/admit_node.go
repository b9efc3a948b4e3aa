package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-node/berth/agent/status"
)

// admitChosen says whether this is a node that the pod's nodeSelector and required node affinity choose. It never will be another
// one: labels change with a restart of the agent only.
func (n *node) admitChosen(pod *corev1.Pod) (verdict, bool) {
	self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.cfg.NodeName, Labels: n.cfg.NodeLabels}}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(self)
	switch {
	case err != nil:
		return verdict{status.Waiting{Reason: "NodeAffinity", Message: fmt.Sprintf("node affinity cannot be understood: %v", err)}, true}, false
	case !ok:
		return verdict{status.Waiting{
			Reason:  "NodeAffinity",
			Message: "the node's labels do not match the pod's nodeSelector or required node affinity; berth agent --node-labels sets more of them",
		}, true}, false
	}
	return verdict{}, true
}
