package environment

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/volume"
)

// chooseVolume finds the PersistentVolume for the claim of a pod's ephemeral volume. Of a pod whose records do not say
// any more what it has, all that it could have counts as taken: it may be using it, and no other pod waits for it.
// Such a pod may be of the other origin, whose objects it could have had.
func chooseVolume(
	rootDir string, objects *object.Stores, node map[string]string, of *corev1.Pod, claim *corev1.PersistentVolumeClaim, taken volume.Taken,
) (string, error) {
	for _, uid := range taken.Unknown {
		pod, ok := Definition(rootDir, uid)
		if !ok {
			return "", fmt.Errorf("nobody knows which volumes the pod with the uid %s has, whose records are damaged: "+
				"none is given until it has gone", uid)
		}
		takeAll(objects.Of(desired.OriginOf(pod)), node, pod, taken.Names)
	}
	chosen, err := objects.Of(desired.OriginOf(of)).Choose(claim, node, taken.Names)
	if err != nil && len(taken.Unknown) > 0 {
		err = fmt.Errorf("%w; what the pods with the uids %v could have is not given to others, since their records are damaged",
			err, taken.Unknown)
	}
	if err != nil {
		return "", err
	}
	return chosen.Name, nil
}

// takeAll adds everything that the ephemeral volumes of a pod could be bound to.
func takeAll(objects *object.Store, node map[string]string, pod *corev1.Pod, taken map[string]bool) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil {
			continue
		}
		claim := object.ClaimOf(pod, v)
		for {
			could, err := objects.Choose(claim, node, taken)
			if err != nil {
				break // there is no more of it
			}
			taken[could.Name] = true
		}
	}
}
