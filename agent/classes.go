package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/cgroups/kube"
)

// classes is what the groups of all pods together and of the classes were given last.
type classes struct {
	mu      sync.Mutex // held over a change of the groups, so that nobody takes one half done for somebody else's
	given   []kube.Wanted
	changed chan struct{} // has one when given has changed
}

func (a *Agent) syncClasses() error {
	c := &a.classes
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	c.given, err = a.tree.SyncQoS(a.pods.Active())
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return err
}

// counts is what a pod adds to its class: nothing before it was taken in, nor after its end. A resize changes the rest.
type counts struct {
	active           bool
	milliCPU, memory int64
}

func (a *Agent) counts(p *corev1.Pod) counts {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return counts{a.pods.Has(p.UID) && !ended, requests.Cpu().MilliValue(), requests.Memory().Value()}
}

// shareDelay gathers the pods that come and go together.
const shareDelay = 200 * time.Millisecond

// shareCPU keeps the CPU share of the Burstable pods as a whole the sum of their requests.
func (a *Agent) shareCPU(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		counted := map[types.UID]counts{}
		// It ends with ctx.
		_ = a.pods.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
			before, now := counted[p.UID], a.counts(p)
			if counted[p.UID] = now; t == watch.Deleted {
				delete(counted, p.UID)
			}
			if t != watch.Modified || before != now {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			return nil
		})
	})
	read := a.read
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-read: // a node without pods has classes too
			read = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(shareDelay):
		}
		if err := a.syncClasses(); err != nil {
			a.log.Warn("CPU shares of the pod classes are not up to date", "error", err)
		}
	}
}
