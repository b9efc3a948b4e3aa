// Package expand tells of claims that ask for more than they have. The resizer of a volume's CSI driver is who makes
// volumes larger, and who keeps the claim's conditions and allocated resources.
package expand

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const reason = "ExternalExpanding"

type teller struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	events  record.EventRecorder
}

// New makes the controller.
func New(claims coreinformers.PersistentVolumeClaimInformer, volumes coreinformers.PersistentVolumeInformer,
	events record.EventRecorder, log *slog.Logger,
) controller.Controller {
	t := &teller{claims.Lister(), volumes.Lister(), events}
	return controller.NewLoop(log, 1, t.sync).
		Watch(claims.Informer(), func(o any) []cache.ObjectName {
			if c, ok := o.(*corev1.PersistentVolumeClaim); ok && grows(c) {
				return []cache.ObjectName{cache.MetaObjectToName(c)}
			}
			return nil
		}).
		Watch(volumes.Informer(), func(any) []cache.ObjectName { return nil })
}

// grows says whether a claim asks for more than it has, and nobody is at it yet.
func grows(c *corev1.PersistentVolumeClaim) bool {
	asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if c.Status.Phase != corev1.ClaimBound || c.DeletionTimestamp != nil || asked.Cmp(has) <= 0 {
		return false
	}
	return c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == "" && len(c.Status.Conditions) == 0
}

func (t *teller) sync(_ context.Context, key cache.ObjectName) (time.Duration, error) {
	c, err := t.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find claim %s: %w", key, err)
	}
	if !grows(c) {
		return 0, nil
	}
	v, err := t.volumes.Get(c.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		t.events.Eventf(c, corev1.EventTypeWarning, reason, "error getting persistent volume %q of the claim: %v", c.Spec.VolumeName, err)
	case err != nil:
		return 0, fmt.Errorf("find volume %s: %w", c.Spec.VolumeName, err)
	case v.Spec.CSI == nil:
		t.events.Event(c, corev1.EventTypeWarning, reason, "Ignoring the PVC: didn't find a plugin capable of expanding the volume; "+
			"waiting for an external controller to process this PVC.")
	default:
		t.events.Event(c, corev1.EventTypeNormal, reason, "waiting for an external controller to expand this PVC")
	}
	return 0, nil
}
