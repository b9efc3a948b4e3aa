package admission

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// defaultClass is the one of the classes that an annotation makes the default: of several the newest, and of those of
// one second the first by its name.
func defaultClass[T metav1.Object](all []T, annotations ...string) (T, bool) {
	var marked []T
	for _, c := range all {
		if slices.ContainsFunc(annotations, func(a string) bool { return c.GetAnnotations()[a] == "true" }) {
			marked = append(marked, c)
		}
	}
	if len(marked) == 0 {
		var none T
		return none, false
	}
	return slices.MinFunc(marked, func(a, b T) int {
		x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		if by := y.Compare(x.Time); by != 0 {
			return by
		}
		if a.GetName() < b.GetName() {
			return -1
		}
		return 1
	}), true
}

// newDefaultStorageClass gives a claim that names no class the default one.
func newDefaultStorageClass(g given) (checks, error) {
	classes := g.informers.Storage().V1().StorageClasses()
	lister := classes.Lister()
	return checks{
		operations: onCreate(), resources: []string{"persistentvolumeclaims"}, synced: []cache.InformerSynced{classes.Informer().HasSynced},
		admit: on(func(_ context.Context, a admission.Attributes, claim *corev1.PersistentVolumeClaim) error {
			_, old := claim.Annotations[corev1.BetaStorageClassAnnotation]
			if old || claim.Spec.StorageClassName != nil {
				return nil
			}
			all, err := lister.List(labels.Everything())
			if err != nil {
				return admission.NewForbidden(a, fmt.Errorf("list storage classes: %w", err))
			}
			class, ok := defaultClass(all, "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
			if ok {
				claim.Spec.StorageClassName = &class.Name
			}
			return nil
		}),
	}, nil
}

// newDefaultIngressClass gives an ingress that names no class the default one.
func newDefaultIngressClass(g given) (checks, error) {
	classes := g.informers.Networking().V1().IngressClasses()
	lister := classes.Lister()
	return checks{
		operations: onCreate(), resources: []string{"ingresses.networking.k8s.io"}, synced: []cache.InformerSynced{classes.Informer().HasSynced},
		admit: on(func(_ context.Context, a admission.Attributes, ingress *networkingv1.Ingress) error {
			if ingress.Spec.IngressClassName != nil || ingress.Annotations["kubernetes.io/ingress.class"] != "" {
				return nil
			}
			all, err := lister.List(labels.Everything())
			if err != nil {
				return admission.NewForbidden(a, fmt.Errorf("list ingress classes: %w", err))
			}
			if class, ok := defaultClass(all, networkingv1.AnnotationIsDefaultIngressClass); ok {
				ingress.Spec.IngressClassName = &class.Name
			}
			return nil
		}),
	}, nil
}

// newClaimResize lets a claim grow only when it is bound and its class says that volumes may.
func newClaimResize(g given) (checks, error) {
	classes := g.informers.Storage().V1().StorageClasses()
	lister := classes.Lister()
	return checks{
		operations: onUpdate(), resources: []string{"persistentvolumeclaims"}, synced: []cache.InformerSynced{classes.Informer().HasSynced},
		validate: onChange(func(_ context.Context, a admission.Attributes, claim, old *corev1.PersistentVolumeClaim) error {
			now, before := claim.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
			if now.Cmp(before) <= 0 {
				return nil
			}
			if old.Status.Phase != corev1.ClaimBound {
				return forbid(a, "Only bound persistent volume claims can be expanded")
			}
			if class, err := lister.Get(className(claim)); err == nil && mayGrow(class) {
				return nil
			}
			return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
		}),
	}, nil
}

func className(claim *corev1.PersistentVolumeClaim) string {
	if name, old := claim.Annotations[corev1.BetaStorageClassAnnotation]; old {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

func mayGrow(class *storagev1.StorageClass) bool {
	return class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}
