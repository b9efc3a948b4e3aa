// Package podtopologyspread spreads pods over the domains of topologies: zones, nodes, whatever labels of nodes say.
package podtopologyspread

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "PodTopologySpread"

const (
	reason        = "node(s) didn't match pod topology spread constraints"
	reasonNoLabel = reason + " (missing required label)"
)

type spread struct {
	handle   fwk.Handle
	defaults []corev1.TopologySpreadConstraint
	system   bool // the defaults are Kubernetes' own
	owners   *owners
	// must and better are what was counted for constraints that have to hold, and for those that would better.
	must, better plugin.Kinds[*census]
}

// New makes the plugin.
func New(_ context.Context, o runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.PodTopologySpreadArgs](o)
	if err != nil {
		return nil, err
	}
	if args.DefaultingType == "" {
		args.DefaultingType = configv1.SystemDefaulting
	}
	if errs := check(args); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	s := &spread{handle: handle, defaults: args.DefaultConstraints}
	if args.DefaultingType == configv1.SystemDefaulting {
		s.system, s.defaults = true, []corev1.TopologySpreadConstraint{
			{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
			{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
		}
	}
	if len(s.defaults) > 0 {
		if s.owners, err = newOwners(handle.SharedInformerFactory()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// check finds what is wrong with arguments.
func check(args *configv1.PodTopologySpreadArgs) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("defaultConstraints")
	switch args.DefaultingType {
	case configv1.SystemDefaulting:
		if len(args.DefaultConstraints) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("defaultingType"), args.DefaultingType,
				"when .defaultConstraints are not empty, must be List"))
		}
	case configv1.ListDefaulting:
	default:
		errs = append(errs, field.NotSupported(field.NewPath("defaultingType"), args.DefaultingType,
			[]configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}))
	}
	type pair struct {
		key    string
		action corev1.UnsatisfiableConstraintAction
	}
	seen := map[pair]bool{}
	for i := range args.DefaultConstraints {
		c, at := &args.DefaultConstraints[i], path.Index(i)
		errs = append(errs, checkDefault(c, at)...)
		if p := (pair{c.TopologyKey, c.WhenUnsatisfiable}); seen[p] {
			errs = append(errs, field.Duplicate(at, c.TopologyKey))
		} else {
			seen[p] = true
		}
	}
	return errs
}

func checkDefault(c *corev1.TopologySpreadConstraint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.MaxSkew <= 0 {
		errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
	}
	if c.TopologyKey == "" {
		errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
	}
	if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
		errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
			[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
	}
	if c.LabelSelector != nil {
		errs = append(errs, field.Forbidden(at.Child("labelSelector"),
			"constraint must not define a selector, as they deduced for each pod"))
	}
	return errs
}

// Name is Kubernetes' name of the plugin.
func (*spread) Name() string { return Name }

// SignPod says what of a pod counts here. Where one that is spread may go changes with every pod that is placed.
func (s *spread) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if s.LooksFar(pod, false) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with topology spread constraints are placed one by one")
	}
	return nil, nil
}

// LooksFar says whether pods on other nodes may matter for a pod.
func (s *spread) LooksFar(pod *corev1.Pod, _ bool) bool {
	return len(pod.Spec.TopologySpreadConstraints) > 0 || !s.together(pod).Empty()
}

// together means the pods that a pod is spread with by the defaults; it is empty if there are none.
func (s *spread) together(pod *corev1.Pod) labels.Selector {
	if len(s.defaults) == 0 {
		return labels.Everything()
	}
	return s.owners.selector(pod)
}

// SignFar says what of any pod counts here: the constraints, which pods they mean, and which nodes these count on.
func (s *spread) SignFar(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	const key = "v1.Pod.Spec.TopologySpreadConstraints"
	var constraints any = pod.Spec.TopologySpreadConstraints
	if len(pod.Spec.TopologySpreadConstraints) == 0 {
		selector := s.together(pod)
		if selector.Empty() {
			return []fwk.SignFragment{{Key: key}}, nil
		}
		constraints = selector.String()
	}
	nodes, err := fwk.NodeAffinitySigner(pod)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("sign node affinity of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return []fwk.SignFragment{
		{Key: key, Value: constraints},
		{Key: "v1.Pod.Namespace", Value: pod.Namespace},
		{Key: fwk.LabelsSignerName, Value: pod.Labels},
		{Key: fwk.NodeAffinitySignerName, Value: nodes},
		{Key: fwk.NodeSelectorSignerName, Value: pod.Spec.NodeSelector},
		{Key: fwk.TolerationsSignerName, Value: fwk.TolerationsSigner(pod)},
	}, nil
}
