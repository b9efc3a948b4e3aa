package statefulset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/history"
	"github.com/berth-node/berth/control/controller/owned"
	"github.com/berth-node/berth/control/controller/statefulset/plan"
)

// do takes steps: those that make or mend before those that end, since claims are mended before their pods go.
func (l *look) do(ctx context.Context, steps []plan.Step) error {
	for _, verb := range []plan.Verb{plan.Repair, plan.Create, plan.Delete} {
		of := slices.Clone(steps)
		of = slices.DeleteFunc(of, func(s plan.Step) bool { return s.Verb != verb })
		_, err := owned.Batches(len(of), func(i int) error {
			switch verb {
			case plan.Create:
				return l.create(ctx, of[i])
			case plan.Repair:
				return l.repair(ctx, l.pods[of[i].Ordinal])
			default:
				return l.end(ctx, l.pods[of[i].Ordinal])
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *look) create(ctx context.Context, step plan.Step) error {
	r := l.update
	if step.Revision == l.current.Name {
		r = l.current
	}
	t, err := history.Template(r)
	if err != nil {
		return err
	}
	p := newPod(l.set, t, step.Ordinal, r.Name)
	if err := l.claims(ctx, p, true); err != nil {
		return err
	}
	made, err := l.keeper.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		if ctx.Err() == nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			l.keeper.events.Eventf(l.set, corev1.EventTypeWarning, owned.NotCreated, "create Pod %s in StatefulSet %s failed error: %v", p.Name, l.set.Name, err)
		}
		return fmt.Errorf("create pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	l.keeper.writes.Wrote(l.key, made)
	l.keeper.events.Eventf(l.set, corev1.EventTypeNormal, owned.Created, "create Pod %s in StatefulSet %s successful", p.Name, l.set.Name)
	return nil
}

func (l *look) end(ctx context.Context, p *corev1.Pod) error {
	err := l.keeper.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		if ctx.Err() == nil {
			l.keeper.events.Eventf(l.set, corev1.EventTypeWarning, owned.NotRemoved, "delete Pod %s in StatefulSet %s failed error: %v", p.Name, l.set.Name, err)
		}
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	l.keeper.writes.Ended(l.key, p)
	if err == nil {
		l.keeper.events.Eventf(l.set, corev1.EventTypeNormal, owned.Removed, "delete Pod %s in StatefulSet %s successful", p.Name, l.set.Name)
	}
	return nil
}

// repair has a pod have its labels and its claims.
func (l *look) repair(ctx context.Context, p *corev1.Pod) error {
	if !identified(l.set, p) {
		changed := p.DeepCopy()
		identify(l.set, changed)
		written, err := l.keeper.client.CoreV1().Pods(p.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		l.keeper.writes.Wrote(l.key, written)
	}
	return l.claims(ctx, p, l.wanted.Wants(ordinalOf(l.set, p.Name)))
}

// mended says whether a pod has its labels and its claims.
func (l *look) mended(p *corev1.Pod) bool {
	if !identified(l.set, p) {
		return false
	}
	wanted := l.wanted.Wants(ordinalOf(l.set, p.Name))
	for i := range l.set.Spec.VolumeClaimTemplates {
		t := &l.set.Spec.VolumeClaimTemplates[i]
		c, err := l.keeper.claimsIn.PersistentVolumeClaims(p.Namespace).Get(claimName(t, p.Name))
		if err != nil && wanted || err == nil && belong(l.set, p, c.DeepCopy(), retains(l.set, wanted)) {
			return false
		}
	}
	return true
}

// claims makes the claims of a pod that miss, and has those that are there be whose they are to be.
func (l *look) claims(ctx context.Context, p *corev1.Pod, wanted bool) error {
	var failed []error
	for i := range l.set.Spec.VolumeClaimTemplates {
		failed = append(failed, l.claim(ctx, &l.set.Spec.VolumeClaimTemplates[i], p, wanted))
	}
	return errors.Join(failed...)
}

func (l *look) claim(ctx context.Context, t *corev1.PersistentVolumeClaim, p *corev1.Pod, wanted bool) error {
	owners, name := retains(l.set, wanted), claimName(t, p.Name)
	api := l.keeper.client.CoreV1().PersistentVolumeClaims(p.Namespace)
	c, err := l.keeper.claimsIn.PersistentVolumeClaims(p.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		if !wanted {
			return nil
		}
		made := newClaim(l.set, t, p.Name)
		belong(l.set, p, made, owners)
		_, err := api.Create(ctx, made, metav1.CreateOptions{})
		switch {
		case err == nil:
			l.keeper.events.Eventf(l.set, corev1.EventTypeNormal, owned.Created, "create Claim %s Pod %s in StatefulSet %s success", name, p.Name, l.set.Name)
			return nil
		case !apierrors.IsAlreadyExists(err):
			if ctx.Err() == nil {
				l.keeper.events.Eventf(l.set, corev1.EventTypeWarning, owned.NotCreated, "create Claim %s for Pod %s in StatefulSet %s failed error: %v", name, p.Name, l.set.Name, err)
			}
			return fmt.Errorf("create claim %s/%s: %w", p.Namespace, name, err)
		}
		// The cache is late, or somebody has made it.
		if c, err = api.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read claim %s/%s: %w", p.Namespace, name, err)
		}
	} else if err != nil {
		return fmt.Errorf("find claim %s/%s: %w", p.Namespace, name, err)
	}
	if wanted && p.UID == "" && stale(p.Name, string(p.UID), c) {
		return fmt.Errorf("use claim %s/%s, which is about to go: %w", p.Namespace, name, controller.ErrWait)
	}
	changed := c.DeepCopy()
	if !belong(l.set, p, changed, owners) {
		return nil
	}
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update claim %s/%s: %w", p.Namespace, name, err)
	}
	return nil
}

// podsOf is how a set sees its pods.
func (l *look) podsOf(s *appsv1.StatefulSet) []plan.Pod {
	var all []plan.Pod
	for ordinal, p := range l.pods {
		ready := p.Status.Phase == corev1.PodRunning && owned.Ready(p)
		available, left := owned.Available(p, s.Spec.MinReadySeconds, l.at)
		if ready && left > 0 {
			l.again = owned.Soonest(l.again, left)
		}
		all = append(all, plan.Pod{
			Ordinal: ordinal, Revision: p.Labels[appsv1.ControllerRevisionHashLabelKey], Created: p.Status.Phase != "",
			Ready: ready, Available: ready && available, Terminating: p.DeletionTimestamp != nil, Finished: owned.Finished(p), Broken: !l.mended(p),
		})
	}
	return all
}
