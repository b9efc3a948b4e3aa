package controller

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Borrowed has a factory hand out an informer that somebody else runs.
func Borrowed(i cache.SharedIndexInformer) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
	return func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return borrowed{i} }
}

// borrowed is an informer that runs already: to run it is to wait until the borrower does not need it any more.
type borrowed struct{ cache.SharedIndexInformer }

// Run implements [cache.SharedIndexInformer].
func (b borrowed) Run(stop <-chan struct{}) { <-stop }

// RunWithContext implements [cache.SharedIndexInformer].
func (b borrowed) RunWithContext(ctx context.Context) { <-ctx.Done() }
