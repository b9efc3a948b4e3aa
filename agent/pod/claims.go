package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/plan"
)

const hookClaims = "claims"

// makeClaims has drivers prepare the pod's claims. One that takes its time holds up no pod without claims.
func (s *site) makeClaims(ctx context.Context) error {
	if len(s.pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	err := s.starting.outside(func() error {
		return s.cfg.Claims.Prepare(ctx, s.pod, func(c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
			return s.cfg.Objects.ResourceClaim(s.pod, c)
		})
	})
	if err != nil {
		return &reasoned{plan.ReasonClaims, err}
	}
	return nil
}

// removeClaims gives the pod's claims back, when nothing of it runs any more.
func (s *site) removeClaims(ctx context.Context) error {
	if !s.cfg.Claims.Has(s.pod.UID) {
		return nil
	}
	return s.stopping.outside(func() error { return s.cfg.Claims.Release(ctx, s.pod.UID) })
}

// claimsChanged tells the pods that have claims, or that wait for some.
func (m *Manager) claimsChanged(tell func(*mailbox)) {
	m.workers.Range(func(uid, w any) bool {
		one := w.(*worker) //nolint:forcetypeassert // nothing else is in there
		if len(one.share.Pod.Spec.ResourceClaims) > 0 || m.cfg.Claims.Has(uid.(types.UID)) {
			tell(one.mail)
		}
		return true
	})
}

// claimStatuses are the claims that templates make for a pod.
func claimStatuses(pod *corev1.Pod) []corev1.PodResourceClaimStatus {
	var out []corev1.PodResourceClaimStatus
	for i := range pod.Spec.ResourceClaims {
		if c := &pod.Spec.ResourceClaims[i]; c.ResourceClaimTemplateName != nil {
			name := object.ResourceClaimName(pod, c)
			out = append(out, corev1.PodResourceClaimStatus{Name: c.Name, ResourceClaimName: &name})
		}
	}
	return out
}

// deviceHealth is how the devices of the pod's containers are, of plugins and of claims.
func (w *worker) deviceHealth() map[string][]corev1.ResourceStatus {
	all := w.cfg.Devices.Health(w.uid)
	claimed := w.cfg.Claims.Health(w.pod)
	if all == nil {
		return claimed
	}
	for name, list := range claimed {
		all[name] = append(all[name], list...)
	}
	return all
}
