// Package selector says whether selectors select labels without reading them first, which takes a hundred times as long
// as to look at one object: it is for who has one object, and thousands of selectors that are anybody's.
package selector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selects says whether a selector selects labels. None selects nothing, and an empty one all.
func Selects(s *metav1.LabelSelector, labels map[string]string) bool {
	if s == nil {
		return false
	}
	for key, value := range s.MatchLabels {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		has, ok := labels[e.Key]
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = ok && slices.Contains(e.Values, has)
		case metav1.LabelSelectorOpNotIn:
			ok = !ok || !slices.Contains(e.Values, has)
		case metav1.LabelSelectorOpExists:
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		default:
			ok = false // the API server takes no other
		}
		if !ok {
			return false
		}
	}
	return true
}

// Empty says whether a selector selects all.
func Empty(s *metav1.LabelSelector) bool {
	return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0
}
