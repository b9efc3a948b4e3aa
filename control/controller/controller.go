// Package controller is what all controllers of a cluster are made of: a loop that brings one thing after another to
// where it should be, who of several members runs it, and as whom it speaks to the API.
package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Controller keeps something of the cluster as it has to be.
type Controller interface {
	// Run works until ctx ends, and returns when nothing that it has started is left. It runs once.
	Run(ctx context.Context)
}

// Enabled says whether a controller runs by the list of --controllers, as Kubernetes' controller manager has it: NAME
// is one that runs, -NAME one that does not, and * are all that run by default. The first word about a name counts.
func Enabled(name string, byDefault bool, list []string) bool {
	star := false
	for _, word := range list {
		switch word {
		case name:
			return true
		case "-" + name:
			return false
		case "*":
			star = true
		}
	}
	return star && byDefault
}

// CheckList refuses words of --controllers that are no controller's, since a misspelt one would run, or not, unseen.
func CheckList(list, names []string) error {
	for _, word := range list {
		if word != "*" && !slices.Contains(names, strings.TrimPrefix(word, "-")) {
			return fmt.Errorf("read --controllers: no controller is %q; there are %s", word, strings.Join(names, ", "))
		}
	}
	return nil
}

// Ended says whether an object was not made since its namespace is gone, or about to be.
func Ended(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
