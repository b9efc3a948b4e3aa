package pod

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
)

// change makes an object known, or that there is none any more, and tells the pods of its origin that it concerns.
func (m *Manager) change(ctx context.Context, u *desired.Update) {
	ref, store := u.Ref(), m.node.cfg.Objects.Of(u.Origin)
	switch {
	case u.Listed:
		store.Listed(ref.Kind)
	case ref.Kind == object.Service: // containers have those that there are when they start
		store.Put(ref, u.Object)
		return
	default:
		store.Put(ref, u.Object)
	}
	for _, workers := range m.workers.live {
		for _, w := range workers {
			if desired.OriginOf(w.share.Pod).Cluster() == u.Origin.Cluster() && (u.Listed || concerns(ref, w.share.Pod)) {
				w.mail.putObject()
			}
		}
	}
	m.retryHeld(ctx)
}

// concerns says whether a pod depends on an object. Which volume a claim is bound to is written in either of them, so
// that a volume concerns every pod with a claim, and so do its attachment and what says how a driver's volumes are to
// be treated.
func concerns(ref object.Ref, pod *corev1.Pod) bool {
	refs := desired.Refs(pod)
	if ref.Kind == object.ClusterTrustBundle && desired.Trusts(pod) {
		return true
	}
	if ref.Kind == object.PersistentVolume || ref.Kind == object.VolumeAttachment || ref.Kind == object.CSIDriver && !slices.Contains(refs, ref) {
		return slices.ContainsFunc(refs, func(r object.Ref) bool { return r.Kind == object.PersistentVolumeClaim })
	}
	return slices.Contains(refs, ref)
}

// classed is the pod with what its classes say, as an API server would have filled it in: its priority, and the
// overhead of its runtime. What the pod says itself stays, and what its classes would say later is for later pods.
func classed(pod *corev1.Pod, objects *object.Store) *corev1.Pod {
	out := *pod
	s := &out.Spec
	if s.Priority == nil {
		c, err := objects.PriorityClass(s.PriorityClassName)
		if s.PriorityClassName == "" {
			c, err = objects.DefaultPriority(), nil
		}
		if err == nil && c != nil {
			s.PriorityClassName, s.Priority, s.PreemptionPolicy = c.Name, &c.Value, c.PreemptionPolicy
		}
	}
	if s.RuntimeClassName != nil && s.Overhead == nil {
		if c, err := objects.RuntimeClass(*s.RuntimeClassName); err == nil && c.Overhead != nil {
			s.Overhead = c.Overhead.PodFixed
		}
	}
	return &out
}

// objectsChanged makes the worker try again at once what has failed for want of an object, and bring the volumes up to
// date.
func (w *worker) objectsChanged() {
	w.place.renew = environment.HasContent(w.pod) || w.node.resources.renew(w.pod)
	for key, f := range w.tries.failed {
		var part *environment.Error
		k := plan.KindOf(key)
		volumes := (k == plan.Prepare || k == plan.Renew) && errors.As(f.Err, &part) && part.Part == environment.PartVolumes
		resource := errors.As(f.Err, &part) && w.node.resources.named(part.Part) // also of a pod that is to end
		config := k == plan.Start && f.Reason == plan.ReasonConfig
		if volumes || resource || config || k == plan.Image && len(w.pod.Spec.ImagePullSecrets) > 0 {
			f.Until, f.Count = time.Time{}, 0
			w.tries.failed[key] = f
		}
	}
}

// bringUpToDate makes the volumes of a pod that runs have what its objects have now.
func (a acts) bringUpToDate(plan.Step) act {
	w := a.worker
	w.place.renew = false
	env, pod := w.place.env, w.pod
	if env == nil {
		env = a.environment()
	}
	return func(ctx context.Context) (func(), error) {
		renewed, err := env.Renewed(ctx, pod)
		if err != nil {
			return nil, err
		}
		return func() {
			if w.place.env != nil {
				w.place.env = renewed
			}
		}, nil
	}
}
