package api

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxMilli is the largest number whose thousandths can still be counted.
const MaxMilli = math.MaxInt64 / 1000

// ValidateResourceName holds a name to what a container may ask for.
func ValidateResourceName(path *field.Path, name corev1.ResourceName) field.ErrorList {
	return resourceName(path, name)
}

// ValidateQuantity holds a quantity to what there can be of the resource.
func ValidateQuantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) field.ErrorList {
	return quantity(path, name, q)
}

// Overcommits says whether limits may promise more of a resource than there is.
func Overcommits(name corev1.ResourceName) bool { return overcommits(name) }

// ValidateTolerations holds tolerations to their rules.
func ValidateTolerations(all []corev1.Toleration, path *field.Path) field.ErrorList {
	return validateTolerations(all, path)
}

// ValidateNodeSelector holds a selector of nodes to its rules; none is right.
func ValidateNodeSelector(s *corev1.NodeSelector, path *field.Path) field.ErrorList {
	return validateNodeSelector(s, path)
}
