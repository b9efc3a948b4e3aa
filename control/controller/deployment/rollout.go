package deployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/history"
	"github.com/berth-node/berth/control/controller/owned"
)

// rollout is one look at a deployment: what there is, and what its status will be.
type rollout struct {
	keeper     *keeper
	key        cache.ObjectName
	d          *appsv1.Deployment   // a copy, whose annotations are changed
	now        *appsv1.ReplicaSet   // of the template as it is, if there is one
	old        []*appsv1.ReplicaSet // all others, the oldest first
	conditions []appsv1.DeploymentCondition
	at         time.Time
}

// find tells the set of the template from the others.
func (r *rollout) find(all []*appsv1.ReplicaSet) {
	slices.SortFunc(all, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	r.now = current(r.keeper.prints, r.d, all)
	r.old = slices.DeleteFunc(slices.Clone(all), func(s *appsv1.ReplicaSet) bool { return s == r.now })
}

// scaling says whether the deployment wants another number of pods than when its sets were given theirs.
func (r *rollout) scaling() bool {
	for _, s := range active(append(slices.Clone(r.old), r.now)) {
		if n, has := number(s, desiredKey); has && n != *r.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// note has the set of the template, if there is one, say what its deployment says.
func (r *rollout) note(ctx context.Context) error {
	if r.now == nil {
		return nil
	}
	s := r.now.DeepCopy()
	changed := annotate(r.d, s, newest(r.old)+1)
	if s.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
		s.Spec.MinReadySeconds, changed = r.d.Spec.MinReadySeconds, true
	}
	if changed {
		if err := r.update(ctx, &r.now, s); err != nil {
			return err
		}
	}
	r.revise(r.now)
	if s := (appsv1.DeploymentStatus{Conditions: r.conditions}); hasDeadline(r.d) && condition(&s, appsv1.DeploymentProgressing) == nil {
		set(&s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", r.now.Name), r.at)
		r.conditions = s.Conditions
	}
	return nil
}

// revise has the deployment say which revision it is at.
func (r *rollout) revise(s *appsv1.ReplicaSet) {
	if n := strconv.FormatInt(revisionOf(s.Annotations), 10); r.d.Annotations[revisionKey] != n {
		r.d.Annotations = maps.Clone(r.d.Annotations)
		if r.d.Annotations == nil {
			r.d.Annotations = map[string]string{}
		}
		r.d.Annotations[revisionKey] = n
	}
}

// make makes the set of the template, with so many pods.
func (r *rollout) make(ctx context.Context, pods int32) error {
	s, err := fresh(r.d, newest(r.old)+1, pods)
	if err != nil {
		return err
	}
	made, err := r.keeper.client.AppsV1().ReplicaSets(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = r.taken(ctx, s.Name)
		if made == nil && err == nil {
			n := int32(1)
			if c := r.d.Status.CollisionCount; c != nil {
				n = *c + 1
			}
			r.d.Status.CollisionCount = &n
			return fmt.Errorf("create replica set %s/%s: %w", s.Namespace, s.Name, history.ErrCollision)
		}
	}
	st := appsv1.DeploymentStatus{Conditions: r.conditions}
	if err != nil {
		if ctx.Err() == nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			message := fmt.Sprintf("Failed to create new replica set %q: %v", s.Name, err)
			if hasDeadline(r.d) {
				set(&st, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonNotMade, message, r.at)
				r.conditions = st.Conditions
			}
			r.keeper.events.Event(r.d, corev1.EventTypeWarning, reasonNotMade, message)
		}
		return fmt.Errorf("create replica set %s/%s: %w", s.Namespace, s.Name, err)
	}
	r.keeper.sets.Wrote(r.key, made)
	if pods > 0 {
		r.keeper.events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", made.Name, pods)
	}
	r.now = made
	r.revise(made)
	if hasDeadline(r.d) {
		set(&st, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", made.Name), r.at)
		r.conditions = st.Conditions
	}
	return nil
}

// taken is the set that has the name already, if it is the one that was to be made: the answer of before was lost.
func (r *rollout) taken(ctx context.Context, name string) (*appsv1.ReplicaSet, error) {
	has, err := r.keeper.client.AppsV1().ReplicaSets(r.d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if metav1.IsControlledBy(has, r.d) && has.DeletionTimestamp == nil && sameTemplate(has, &r.d.Spec.Template) {
		return has, nil
	}
	return nil, nil
}

// fresh is a set of a deployment's template.
func fresh(d *appsv1.Deployment, revision int64, pods int32) (*appsv1.ReplicaSet, error) {
	hash, err := hashOf(d)
	if err != nil {
		return nil, err
	}
	with := func(labels map[string]string) map[string]string {
		out := maps.Clone(labels)
		if out == nil {
			out = map[string]string{}
		}
		out[appsv1.DefaultDeploymentUniqueLabelKey] = hash
		return out
	}
	template := d.Spec.Template.DeepCopy()
	template.Labels = with(template.Labels)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels)
	s := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: history.Name(d.Name, hash), Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &pods, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *template},
	}
	annotate(d, s, revision)
	surge, _ := bounds(d)
	size(s, *d.Spec.Replicas, *d.Spec.Replicas+surge)
	return s, nil
}

// apply gives sets other numbers of pods.
func (r *rollout) apply(ctx context.Context, steps []resize) error {
	surge, _ := bounds(r.d)
	for _, step := range steps {
		s := step.set.DeepCopy()
		from := *s.Spec.Replicas
		s.Spec.Replicas = &step.to
		if !size(s, *r.d.Spec.Replicas, *r.d.Spec.Replicas+surge) && from == step.to {
			continue
		}
		at := &r.now
		for i := range r.old {
			if r.old[i] == step.set {
				at = &r.old[i]
			}
		}
		if err := r.update(ctx, at, s); err != nil {
			return err
		}
		if from != step.to {
			how := "up"
			if step.to < from {
				how = "down"
			}
			r.keeper.events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", how, s.Name, from, step.to)
		}
	}
	return nil
}

func (r *rollout) update(ctx context.Context, at **appsv1.ReplicaSet, s *appsv1.ReplicaSet) error {
	written, err := r.keeper.client.AppsV1().ReplicaSets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update replica set %s/%s: %w", s.Namespace, s.Name, err)
	}
	r.keeper.sets.Wrote(r.key, written)
	*at = written
	return nil
}

// resized are sets whose deployment wants another number of pods, outside of what a rollout does.
func (r *rollout) resized() []resize {
	all := active(append(slices.Clone(r.old), r.now))
	switch {
	case len(all) == 1:
		return []resize{{all[0], *r.d.Spec.Replicas}}
	case len(all) == 0 && r.now != nil:
		return []resize{{r.now, *r.d.Spec.Replicas}}
	case len(all) == 0 && len(r.old) > 0:
		return []resize{{r.old[len(r.old)-1], *r.d.Spec.Replicas}}
	}
	if n := r.now; n != nil && *n.Spec.Replicas == *r.d.Spec.Replicas && n.Status.AvailableReplicas == *r.d.Spec.Replicas {
		if desired, has := number(n, desiredKey); has && desired == *r.d.Spec.Replicas {
			return none(r.old)
		}
	}
	if r.d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		return spread(r.d, r.now, r.old)
	}
	return nil
}

func none(sets []*appsv1.ReplicaSet) []resize {
	var steps []resize
	for _, s := range active(sets) {
		steps = append(steps, resize{s, 0})
	}
	return steps
}

// recreate ends all pods of before, and makes those of now when none of them runs any more.
func (r *rollout) recreate(ctx context.Context) error {
	if steps := none(r.old); len(steps) > 0 {
		return r.apply(ctx, steps)
	}
	for _, s := range r.old {
		if slices.ContainsFunc(r.keeper.pods.Of(s.UID), func(p *corev1.Pod) bool { return !owned.Finished(p) }) || s.Status.Replicas > 0 {
			return nil // they lead here again when they are gone
		}
	}
	if r.now == nil {
		return r.make(ctx, *r.d.Spec.Replicas)
	}
	return r.apply(ctx, []resize{{r.now, *r.d.Spec.Replicas}})
}

// rolling brings a rollout one step on.
func (r *rollout) rolling(ctx context.Context) error {
	if r.now == nil {
		return r.make(ctx, grow(r.d, 0, replicas(r.old...)))
	}
	return r.apply(ctx, roll(r.d, r.now, r.old))
}

// forget removes sets of before that have no pods, but for so many as are kept to go back to.
func (r *rollout) forget(ctx context.Context) error {
	limit := r.d.Spec.RevisionHistoryLimit
	if limit == nil {
		return nil
	}
	all := slices.DeleteFunc(slices.Clone(r.old), func(s *appsv1.ReplicaSet) bool { return s.DeletionTimestamp != nil })
	slices.SortStableFunc(all, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Compare(revisionOf(a.Annotations), revisionOf(b.Annotations))
	})
	var failed []error
	for _, s := range all[:max(0, len(all)-int(*limit))] {
		if s.Status.Replicas != 0 || *s.Spec.Replicas != 0 || s.Generation > s.Status.ObservedGeneration {
			continue
		}
		err := r.keeper.client.AppsV1().ReplicaSets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: uid(s.UID)})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete replica set %s/%s: %w", s.Namespace, s.Name, err))
			continue
		}
		r.keeper.sets.Ended(r.key, s)
	}
	return errors.Join(failed...)
}

func uid(u types.UID) *metav1.Preconditions { return &metav1.Preconditions{UID: &u} }
