package noderesourcesfit

import (
	"strings"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/plugin/resources"
)

// readArgs are the arguments with their defaults, checked.
func readArgs(o runtime.Object) (*configv1.NodeResourcesFitArgs, error) {
	args, err := plugin.Args[configv1.NodeResourcesFitArgs](o)
	if err != nil {
		return nil, err
	}
	if args.ScoringStrategy == nil {
		args.ScoringStrategy = &configv1.ScoringStrategy{Type: configv1.LeastAllocated}
	}
	args.ScoringStrategy.Resources = resources.Defaults(args.ScoringStrategy.Resources)
	return args, check(args).ToAggregate()
}

func check(args *configv1.NodeResourcesFitArgs) field.ErrorList {
	var errs field.ErrorList
	for i, name := range args.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(name, field.NewPath("ignoredResources").Index(i))...)
	}
	for i, group := range args.IgnoredResourceGroups {
		path := field.NewPath("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(path, group, "resource group name can't contain '/'"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(group, path)...)
	}
	return append(errs, checkStrategy(args.ScoringStrategy, field.NewPath("scoringStrategy"))...)
}

func checkStrategy(s *configv1.ScoringStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	types := []configv1.ScoringStrategyType{
		configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio,
	}
	switch ratio := path.Child("requestedToCapacityRatio"); {
	case s.Type == configv1.RequestedToCapacityRatio && s.RequestedToCapacityRatio == nil:
		errs = append(errs, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio"))
	case s.Type == configv1.RequestedToCapacityRatio:
		errs = append(errs, resources.Shape(s.RequestedToCapacityRatio.Shape).Check(ratio.Child("shape"))...)
	case s.RequestedToCapacityRatio != nil:
		errs = append(errs, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio"))
	}
	if s.Type != types[0] && s.Type != types[1] && s.Type != types[2] {
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type, types))
	}
	return append(errs, resources.CheckSpecs(s.Resources, path.Child("resources"), 100)...)
}
