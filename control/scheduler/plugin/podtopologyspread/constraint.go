package podtopologyspread

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// constraint is a pod's, parsed, with its defaults.
type constraint struct {
	topology   string
	selector   labels.Selector
	maxSkew    int64
	minDomains int
	affinity   bool // only nodes count that the pod's node affinity takes
	taints     bool // only nodes count whose taints the pod tolerates
	self       bool // the pod is one of those that are counted
}

// constraints are a pod's own of a kind, or the defaults if it has none of any kind.
func (s *spread) constraints(pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		path := field.NewPath("spec", "topologySpreadConstraints")
		return parse(pod.Spec.TopologySpreadConstraints, pod, action, nil, path)
	}
	some := false
	for i := range s.defaults {
		some = some || s.defaults[i].WhenUnsatisfiable == action
	}
	if !some {
		return nil, nil
	}
	selector := s.owners.selector(pod)
	if selector.Empty() {
		return nil, nil // nobody says which pods belong together
	}
	return parse(s.defaults, pod, action, selector, field.NewPath("defaultConstraints"))
}

func parse(
	list []corev1.TopologySpreadConstraint, pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction,
	selector labels.Selector, path *field.Path,
) ([]constraint, error) {
	var all []constraint
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		out := constraint{
			topology: c.TopologyKey, selector: selector, maxSkew: int64(c.MaxSkew), minDomains: 1, affinity: true,
		}
		if selector == nil {
			var err error
			if out.selector, err = selectorOf(c, pod); err != nil {
				return nil, fmt.Errorf("parse %s: %w", path.Index(i).Child("labelSelector"), err)
			}
		}
		if c.MinDomains != nil {
			out.minDomains = int(*c.MinDomains)
		}
		if c.NodeAffinityPolicy != nil {
			out.affinity = *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
		}
		if c.NodeTaintsPolicy != nil {
			out.taints = *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		}
		out.self = out.selector.Matches(labels.Set(pod.Labels))
		all = append(all, out)
	}
	return all, nil
}

// selectorOf is a constraint's selector, narrowed to pods that have the pod's own values of some labels. The API server
// has done that already for pods that it took while it knew of it.
func selectorOf(c *corev1.TopologySpreadConstraint, pod *corev1.Pod) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil, err
	}
	for _, key := range c.MatchLabelKeys {
		value, ok := pod.Labels[key]
		if !ok {
			continue
		}
		r, err := labels.NewRequirement(key, selection.Equals, []string{value})
		if err != nil {
			return nil, err
		}
		if _, selectable := selector.Requirements(); selectable {
			selector = selector.Add(*r)
		}
	}
	return selector, nil
}

// count is how many of the pods of a node a constraint means. Pods that end make room in a moment.
func (c *constraint) count(pods []fwk.PodInfo, namespace string) int64 {
	if c.selector.Empty() {
		return 0
	}
	n := int64(0)
	for _, info := range pods {
		p := info.GetPod()
		if p.DeletionTimestamp == nil && p.Namespace == namespace && c.selector.Matches(labels.Set(p.Labels)) {
			n++
		}
	}
	return n
}

// inAll says of labels of a node that they place it in every constraint's topology.
func inAll(node map[string]string, constraints []constraint) bool {
	for i := range constraints {
		if _, ok := node[constraints[i].topology]; !ok {
			return false
		}
	}
	return true
}

// inclusion is which nodes a pod could be on at all, for constraints that count only those.
type inclusion struct {
	required    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

func inclusionOf(pod *corev1.Pod) *inclusion {
	return &inclusion{nodeaffinity.GetRequiredNodeAffinity(pod), pod.Spec.Tolerations}
}

func (in *inclusion) counts(c *constraint, node *corev1.Node) bool {
	if c.affinity {
		// What is wrong with the terms, the filter by node affinity says.
		if ok, _ := in.required.Match(node); !ok {
			return false
		}
	}
	if !c.taints {
		return true
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, in.tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, false)
	return !untolerated
}
