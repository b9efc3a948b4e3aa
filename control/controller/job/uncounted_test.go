package job

import (
	"fmt"
	"math"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestUncountedOfStrangers has users write into the status that all of ten thousand pods are about to be counted, as
// what they are not, and others that there never were: each pod counts once, and lets go in its turn.
func TestUncountedOfStrangers(t *testing.T) {
	const many = 10_000
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "j"}}
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimit = new(int32(math.MaxInt32)), new(int32(1)), new(int32(math.MaxInt32))
		u := &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"never"}}
		j.Status.UncountedTerminatedPods = u
		var pods []*corev1.Pod
		for i := range many {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Finalizers: []string{batchv1.JobTrackingFinalizer},
			}}
			p.Status.Phase = phase
			pods = append(pods, p)
			u.Failed = append(u.Failed, types.UID(fmt.Sprint(many-1-i)))
		}
		for n := many; n > 0; n -= maxUncounted {
			p := decide(j, pods, time.Now())
			if len(p.release) != maxUncounted || len(p.status.UncountedTerminatedPods.Failed) != n || len(p.status.UncountedTerminatedPods.Succeeded) != 0 {
				t.Fatalf("%s: %d go, %d are about to", phase, len(p.release), len(p.status.UncountedTerminatedPods.Failed))
			}
			for _, one := range p.release {
				one.Finalizers = nil
			}
			j.Status = p.status
		}
		if p := decide(j, pods, time.Now()); p.status.Failed != many || p.status.Succeeded != 1 {
			t.Errorf("%s: counted are %d and %d", phase, p.status.Failed, p.status.Succeeded)
		}
	}
}
