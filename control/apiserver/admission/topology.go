package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// newTopologyLabels gives pods the labels that tell the zone and region of their node, so that a container learns of it
// by the downward API, without a right to read nodes.
func newTopologyLabels(g given) (checks, error) {
	nodes := g.informers.Core().V1().Nodes()
	lister := nodes.Lister()
	label := func(a admission.Attributes, o *metav1.ObjectMeta, name string) error {
		node, err := lister.Get(name)
		if apierrors.IsNotFound(err) {
			return nil // who binds to a node that there is not is told so elsewhere
		} else if err != nil {
			return admission.NewForbidden(a, fmt.Errorf("find node %s: %w", name, err))
		}
		for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
			value, has := node.Labels[key]
			if !has {
				continue
			}
			if o.Labels == nil {
				o.Labels = map[string]string{}
			}
			o.Labels[key] = value
		}
		return nil
	}
	return checks{
		operations: onCreate(), resources: []string{"pods", "pods/binding", "bindings"}, synced: []cache.InformerSynced{nodes.Informer().HasSynced},
		admit: func(_ context.Context, a admission.Attributes) error {
			switch o := a.GetObject().(type) {
			case *corev1.Pod:
				if o.Spec.NodeName == "" {
					return nil
				}
				return label(a, &o.ObjectMeta, o.Spec.NodeName)
			case *corev1.Binding:
				if o.Target.Kind != "Node" {
					return nil
				}
				return label(a, &o.ObjectMeta, o.Target.Name)
			}
			return wrongType(a, a.GetObject())
		},
	}, nil
}
