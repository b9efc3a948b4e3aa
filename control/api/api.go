// Package api is what the API server knows of a Pod before it is stored: the defaults it fills in and the rules it holds a
// new Pod to. It is pure: no I/O, no clock, no feature gates.
package api

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SetDefaults fills in what the API server would.
func SetDefaults(pod *corev1.Pod) {}

// Validate holds a defaulted Pod to the rules of the API server for a create.
func Validate(pod *corev1.Pod) field.ErrorList { return nil }
