package desired

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// AnnotationAfter names the pods of this node that have to be up before a pod starts: "NAMESPACE/NAME[=Ready], ...".
// Without a namespace it is the pod's own, and the node's name at the end of a name may be left out.
const AnnotationAfter = "berth.node/after"

// Dependency is a pod that has to be up before another one starts.
type Dependency struct {
	types.NamespacedName      // with the node's name
	Ready                bool // it must be ready, not only running
}

func (d Dependency) String() string {
	if d.Ready {
		return d.NamespacedName.String() + " is ready"
	}
	return d.NamespacedName.String() + " runs"
}

// After returns the pods that a pod starts after.
func After(pod *corev1.Pod) ([]Dependency, error) {
	text := pod.Annotations[AnnotationAfter]
	if text == "" {
		return nil, nil
	}
	var out []Dependency
	for one := range strings.SplitSeq(text, ",") {
		name, state, has := strings.Cut(strings.TrimSpace(one), "=")
		if has && state != "Ready" {
			return nil, fmt.Errorf("%q: only Ready can be waited for", one)
		}
		d := Dependency{Ready: has}
		d.Namespace, d.Name, has = strings.Cut(name, "/")
		if !has {
			d.Namespace, d.Name = pod.Namespace, d.Namespace
		}
		if len(validation.IsDNS1123Subdomain(d.Name)) > 0 || len(validation.IsDNS1123Label(d.Namespace)) > 0 {
			return nil, fmt.Errorf("%q: must be NAMESPACE/NAME or NAMESPACE/NAME=Ready, several of them separated by commas", one)
		}
		if suffix := "-" + pod.Spec.NodeName; !strings.HasSuffix(d.Name, suffix) {
			d.Name += suffix
		}
		if d.Namespace == pod.Namespace && d.Name == pod.Name {
			return nil, fmt.Errorf("%q: it is the pod itself", one)
		}
		out = append(out, d)
	}
	return out, nil
}
