package verticalautoscaler

import (
	"context"
	"fmt"
	"time"

	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/target"
	controllerfetcher "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/target/controller_fetcher"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// How long the library keeps what it has asked of kinds that only a scale subresource tells of.
const (
	scaleFresh = 10 * time.Minute
	scaleKept  = time.Hour
	scaleLoop  = 7 * time.Second
)

// owners find what an autoscaler is of: by what its target selects, and by what the target of a pod is.
type owners struct {
	selectors   target.VpaTargetSelectorFetcher
	controllers controllerfetcher.ControllerFetcher
}

// ownerKinds are the kinds whose objects the libraries look for in informers.
func ownerKinds(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{
		f.Apps().V1().DaemonSets().Informer(), f.Apps().V1().Deployments().Informer(), f.Apps().V1().ReplicaSets().Informer(),
		f.Apps().V1().StatefulSets().Informer(), f.Core().V1().ReplicationControllers().Informer(), f.Core().V1().LimitRanges().Informer(),
		f.Batch().V1().Jobs().Informer(), f.Batch().V1().CronJobs().Informer(),
	}
}

func newOwners(ctx context.Context, d Deps) (*owners, error) {
	// The libraries end the process where they cannot make this client.
	if _, err := discovery.NewDiscoveryClientForConfig(d.Config); err != nil {
		return nil, fmt.Errorf("make client of kinds: %w", err)
	}
	controllers := controllerfetcher.NewControllerFetcher(d.Config, d.Client, d.Own, scaleFresh, scaleKept, 1, ctx.Done())
	controllers.Start(ctx, scaleLoop)
	return &owners{selectors: target.NewVpaTargetSelectorFetcher(d.Config, d.Client, d.Own, ctx.Done()), controllers: controllers}, nil
}
