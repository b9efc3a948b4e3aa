package deployment

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/history"
)

// Annotations of deployments and their sets, which kubectl reads.
const (
	revisionKey = "deployment.kubernetes.io/revision"
	historyKey  = "deployment.kubernetes.io/revision-history"
	desiredKey  = "deployment.kubernetes.io/desired-replicas"
	maxKey      = "deployment.kubernetes.io/max-replicas"

	// historyLimit is how many characters a list of earlier revisions has at most.
	historyLimit = 2000
)

// own are annotations that a set does not have of its deployment.
var own = []string{corev1.LastAppliedConfigAnnotation, revisionKey, historyKey, desiredKey, maxKey, appsv1.DeprecatedRollbackTo}

// hashOf is what tells the pods of one template from those of another.
func hashOf(d *appsv1.Deployment) (string, error) {
	text, err := json.Marshal(&d.Spec.Template)
	if err != nil {
		return "", fmt.Errorf("encode template: %w", err)
	}
	var collisions int32
	if d.Status.CollisionCount != nil {
		collisions = *d.Status.CollisionCount
	}
	return history.Hash(text, collisions), nil
}

// sameTemplate says whether a set is of a template, its hash aside.
func sameTemplate(s *appsv1.ReplicaSet, t *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(&s.Spec.Template), withoutHash(t))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, has := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !has {
		return t
	}
	out := *t
	out.Labels = maps.Clone(t.Labels)
	delete(out.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &out
}

// current is the set of a deployment's template, if there is one; of several the oldest, so that it is the same one
// each time. The sets are sorted by their age.
func current(prints *history.Prints, d *appsv1.Deployment, all []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	like := prints.Like(cache.MetaObjectToName(d), len(all), withoutHash(&d.Spec.Template))
	for _, s := range all {
		if like(s, func() *corev1.PodTemplateSpec { return withoutHash(&s.Spec.Template) }) {
			return s
		}
	}
	return nil
}

func revisionOf(annotations map[string]string) int64 {
	n, err := strconv.ParseInt(annotations[revisionKey], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// newest is the highest revision of sets.
func newest(all []*appsv1.ReplicaSet) int64 {
	var n int64
	for _, s := range all {
		n = max(n, revisionOf(s.Annotations))
	}
	return n
}

// annotate gives a set what it has of its deployment, and a revision, if that is higher. It says whether that changes
// anything.
func annotate(d *appsv1.Deployment, s *appsv1.ReplicaSet, revision int64) bool {
	changed := false
	set := func(key, value string) {
		if has, is := s.Annotations[key]; !is || has != value {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[key], changed = value, true
		}
	}
	for key, value := range d.Annotations {
		if !slices.Contains(own, key) {
			set(key, value)
		}
	}
	before := s.Annotations[revisionKey]
	if before != "" && revisionOf(s.Annotations) >= revision {
		return changed
	}
	set(revisionKey, strconv.FormatInt(revision, 10))
	if before != "" {
		set(historyKey, earlier(s.Annotations[historyKey], before))
	}
	return changed
}

// earlier is a list of revisions with one more. The oldest are forgotten.
func earlier(list, one string) string {
	if strings.Contains(","+list+",", ","+one+",") {
		return list
	}
	if list != "" {
		list += ","
	}
	list += one
	// Users may have written 100,000 of them: it is one cut for all, and not one for each.
	if over := len(list) - historyLimit; over > 0 {
		end := strings.IndexByte(list[over-1:], ',')
		if end < 0 {
			return one
		}
		list = list[over+end:]
	}
	return list
}

// size notes in a set how many pods its deployment has, by which a later change of that number is told from a rollout.
func size(s *appsv1.ReplicaSet, desired, most int32) bool {
	changed := false
	for key, n := range map[string]int32{desiredKey: desired, maxKey: most} {
		if text := strconv.Itoa(int(n)); s.Annotations[key] != text {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[key], changed = text, true
		}
	}
	return changed
}

func number(s *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(s.Annotations[key], 10, 32)
	return int32(n), err == nil
}
