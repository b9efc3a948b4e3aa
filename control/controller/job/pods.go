package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/owned"
)

// podOf is a new pod of a job.
func podOf(j *batchv1.Job, s slot) *corev1.Pod {
	p := owned.FromTemplate(&j.Spec.Template, j, kind)
	if !tracked(p) {
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if s.index < 0 {
		return p
	}
	number := strconv.Itoa(s.index)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Annotations[batchv1.JobCompletionIndexAnnotation] = number
	p.Labels[batchv1.JobCompletionIndexAnnotation] = number
	p.GenerateName = j.Name + "-" + number + "-"
	p.Spec.Hostname = j.Name + "-" + number
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			addIndex(&all[i])
		}
	}
	if j.Spec.BackoffLimitPerIndex != nil {
		countFailures(j, p, s.after)
	}
	return p
}

// addIndex has a container know its index.
func addIndex(c *corev1.Container) {
	const name = "JOB_COMPLETION_INDEX"
	for _, e := range c.Env {
		if e.Name == name {
			return
		}
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"},
	}})
}

// countFailures has a pod say how many of its index failed before it.
func countFailures(j *batchv1.Job, p, after *corev1.Pod) {
	counted, all := 0, 0
	if after != nil {
		counted, all = failuresOf(after)
		all++
		if judge(j.Spec.PodFailurePolicy, after).action != batchv1.PodFailurePolicyActionIgnore {
			counted++
		}
	}
	p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(counted)
	if all > counted {
		p.Annotations[ignoredFailures] = strconv.Itoa(all - counted)
	}
}

// each does something with pods, some at a time.
func each(pods []*corev1.Pod, do func(*corev1.Pod) error) error {
	return errors.Join(owned.Each(len(pods), func(i int) error { return do(pods[i]) })...)
}

// untrack lets a pod go. With exact it does so only if the pod is what it was: one that has ended since has to count.
func (k *keeper) untrack(ctx context.Context, owner cache.ObjectName, p *corev1.Pod, exact bool) error {
	if !tracked(p) {
		return nil
	}
	about := map[string]any{"uid": p.UID, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer}}
	if exact {
		about["resourceVersion"] = p.ResourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": about})
	if err != nil {
		return fmt.Errorf("write finalizers of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	now, err := k.keep.Patch(ctx, p, patch)
	switch {
	case apierrors.IsNotFound(err) || !exact && apierrors.IsConflict(err):
		k.keep.Writes.Ended(owner, p)
		return nil
	case err != nil:
		return fmt.Errorf("write finalizers of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	// One that is deleted is gone with that, and no cache hears of the version.
	if p.DeletionTimestamp == nil {
		k.keep.Writes.Wrote(owner, now)
	}
	return nil
}

// change is the patch by which a pod is adopted or released. In the same write it begins to be tracked, or is no
// longer: a pod of no job that is tracked would never go, and one of a job that is not would never count.
func (k *keeper) change(ctx context.Context, p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	var read map[string]map[string]any
	if err := json.Unmarshal(patch, &read); err != nil {
		return nil, fmt.Errorf("read patch of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	key := "finalizers"
	if metav1.GetControllerOfNoCopy(p) != nil {
		key = "$deleteFromPrimitiveList/finalizers"
	}
	read["metadata"][key] = []string{batchv1.JobTrackingFinalizer}
	patch, err := json.Marshal(read)
	if err != nil {
		return nil, fmt.Errorf("write patch of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return k.keep.Patch(ctx, p, patch)
}

// byJob is the index of the pods that are still tracked by the names of their jobs: of a job that is gone its UID is
// not known, and whoever has a thousand jobs that have ended has their pods, too, so that no look goes through all.
const byJob = "trackedByJob"

func jobOf(o any) ([]string, error) {
	p, ok := o.(*corev1.Pod)
	if !ok || !tracked(p) {
		return nil, nil
	}
	if c := metav1.GetControllerOfNoCopy(p); c != nil && c.Kind == kind.Kind {
		return []string{cache.ObjectName{Namespace: p.Namespace, Name: c.Name}.String()}, nil
	}
	return nil, nil
}

// left lets go the pods that a job has left behind.
func (k *keeper) left(ctx context.Context, key cache.ObjectName) error {
	var pods []*corev1.Pod
	all, err := k.index.ByIndex(byJob, key.String())
	if err != nil {
		return fmt.Errorf("find pods of job %s: %w", key, err)
	}
	for _, o := range all {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		return nil
	}
	// The cache of jobs may be later than that of pods.
	now, err := k.client.BatchV1().Jobs(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read job %s: %w", key, err)
	}
	return each(pods, func(p *corev1.Pod) error {
		if err == nil && metav1.GetControllerOfNoCopy(p).UID == now.UID {
			return nil
		}
		return k.untrack(ctx, key, p, false)
	})
}
