package namespace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// conditions are what the namespace says of its end: one of each kind, in Kubernetes' words, and those of others.
func (r *rest) conditions(have []corev1.NamespaceCondition) ([]corev1.NamespaceCondition, bool) {
	all, changed := slices.Clone(have), false
	for _, want := range r.wanted() {
		i := slices.IndexFunc(all, func(c corev1.NamespaceCondition) bool { return c.Type == want.Type })
		switch {
		case i < 0:
			want.LastTransitionTime = metav1.Now()
			all, changed = append(all, want), true
		case all[i].Status != want.Status || all[i].Reason != want.Reason || all[i].Message != want.Message:
			want.LastTransitionTime = all[i].LastTransitionTime
			if all[i].Status != want.Status {
				want.LastTransitionTime = metav1.Now()
			}
			all[i], changed = want, true
		}
	}
	return all, changed
}

func (r *rest) wanted() []corev1.NamespaceCondition {
	var remain []string
	for of, n := range r.count {
		if n > 0 {
			remain = append(remain, fmt.Sprintf("%s has %d resource instances", of, n))
		}
	}
	slices.Sort(remain)
	var finalizers []string
	for _, f := range slices.Sorted(maps.Keys(r.finalizers)) {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", f, r.finalizers[f]))
	}
	return []corev1.NamespaceCondition{
		state(corev1.NamespaceDeletionDiscoveryFailure, r.discovery != nil, "DiscoveryFailed", "ResourcesDiscovered",
			fmt.Sprintf("Discovery failed for some groups, %d failing: %v", groups(r.discovery), r.discovery), "All resources successfully discovered"),
		state(corev1.NamespaceDeletionGVParsingFailure, false, "", "ParsedGroupVersions", "", "All legacy kube types successfully parsed"),
		state(corev1.NamespaceDeletionContentFailure, len(r.content) > 0, "ContentDeletionFailed", "ContentDeleted",
			fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(r.content), errors.Join(r.content...)),
			"All content successfully deleted, may be waiting on finalization"),
		state(corev1.NamespaceContentRemaining, len(remain) > 0, "SomeResourcesRemain", "ContentRemoved",
			"Some resources are remaining: "+some(remain), "All content successfully removed"),
		state(corev1.NamespaceFinalizersRemaining, len(finalizers) > 0, "SomeFinalizersRemain", "ContentHasNoFinalizers",
			"Some content in the namespace has finalizers remaining: "+some(finalizers), "All content-preserving finalizers finished"),
	}
}

// groups is of how many groups it is not known what they have.
func groups(err error) int {
	if failed, is := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); is {
		return len(failed.Groups)
	}
	return 1
}

// some are the first of some parts of a message: finalizers are called as anybody likes, each of thousands otherwise.
func some(parts []string) string {
	const few = 20
	if more := len(parts) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(parts[:few], ", "), more)
	}
	return strings.Join(parts, ", ")
}

// maxMessage bounds what a condition says: what other API servers answer may be of any length.
const maxMessage = 4096

// state is a condition that is true when something stands in the way.
func state(kind corev1.NamespaceConditionType, is bool, reason, otherwise, message, fine string) corev1.NamespaceCondition {
	if is {
		if len(message) > maxMessage {
			message = strings.ToValidUTF8(message[:maxMessage], "") + " ..."
		}
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: otherwise, Message: fine}
}
