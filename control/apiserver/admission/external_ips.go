package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// newDenyExternalIPs refuses external IPs that a service did not have: by them a user takes traffic to any address that
// comes from within the cluster.
func newDenyExternalIPs(given) (checks, error) {
	return checks{
		operations: onWrite(), resources: []string{"services"},
		validate: on(func(_ context.Context, a admission.Attributes, service *corev1.Service) error {
			var before []string
			if old, ok := a.GetOldObject().(*corev1.Service); ok {
				before = old.Spec.ExternalIPs
			}
			if slices.ContainsFunc(service.Spec.ExternalIPs, func(ip string) bool { return !slices.Contains(before, ip) }) {
				return forbid(a, "Use of external IPs is denied by admission control")
			}
			return nil
		}),
	}, nil
}
