package resources

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	full     = 100 // of utilization
	topScore = 10  // that a shape gives
)

// Shape says what score a utilization has: straight lines between points, flat before the first and after the last.
type Shape []configv1.UtilizationShapePoint

// At is the score of a utilization between 0 and 100, on the scale of nodes' scores.
func (s Shape) At(utilization int64) int64 {
	score := func(i int) int64 { return int64(s[i].Score) * (fwk.MaxScore / topScore) }
	for i := range s {
		x := int64(s[i].Utilization)
		if utilization > x {
			continue
		}
		if i == 0 {
			return score(0)
		}
		from := int64(s[i-1].Utilization)
		return score(i-1) + (score(i)-score(i-1))*(utilization-from)/(x-from)
	}
	return score(len(s) - 1)
}

// Check finds what is wrong with a shape.
func (s Shape) Check(path *field.Path) field.ErrorList {
	if len(s) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	var errs field.ErrorList
	for i := range s {
		at := path.Index(i)
		if i > 0 && s[i].Utilization <= s[i-1].Utilization {
			errs = append(errs, field.Invalid(at.Child("utilization"), s[i].Utilization,
				"utilization values must be sorted in increasing order"))
		}
		if s[i].Utilization < 0 || s[i].Utilization > full {
			errs = append(errs, field.Invalid(at.Child("utilization"), s[i].Utilization, "not in valid range [0, 100]"))
		}
		if s[i].Score < 0 || s[i].Score > topScore {
			errs = append(errs, field.Invalid(at.Child("score"), s[i].Score, "not in valid range [0, 10]"))
		}
	}
	return errs
}
