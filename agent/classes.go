package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/cgroups/kube"
)

// classes is what the groups of all pods together and of the classes were given last.
type classes struct {
	tree *kube.Tree
	pods *pod.Manager
	log  *slog.Logger

	mu      sync.Mutex // held over a change of the groups, so that nobody takes one half done for somebody else's
	sums    sums
	asked   totals // what given came of; nil: not known
	given   []kube.Wanted
	changed chan struct{} // has one when given has changed
}

func newClasses(tree *kube.Tree, pods *pod.Manager, log *slog.Logger) *classes {
	return &classes{tree: tree, pods: pods, log: log, changed: make(chan struct{}, 1)}
}

// Given implements [drift.Classes].
func (c *classes) Given(fn func([]kube.Wanted) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fn(c.given)
}

// Changed implements [drift.Classes].
func (c *classes) Changed() <-chan struct{} { return c.changed }

// sync gives the groups what the pods come to that there are now. Where that is what they were given last, nothing is
// written: each write is an event of the kernel, after which all values are compared. Who changes them meanwhile,
// the same comparison sees, where that is wanted.
func (c *classes) sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := totalsOf(c.sums.of(c.pods.Active()))
	if c.asked != nil && maps.Equal(asked, c.asked) {
		return nil
	}
	var err error
	if c.given, err = c.tree.SyncQoS(slices.Collect(maps.Values(asked))); err == nil {
		c.asked = asked
	} else {
		c.asked = nil
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return err
}

// sums are what pods request, which is added up once for each as it is: a pod that changes is another object. While
// many pods come and go, all others are looked at five times a second.
type sums map[*corev1.Pod]kube.Requests

// of is what these pods request. Others are forgotten.
func (s *sums) of(pods []*corev1.Pod) []kube.Requests {
	now, out := make(sums, len(pods)), make([]kube.Requests, len(pods))
	for i, p := range pods {
		r, ok := (*s)[p]
		if !ok {
			r = kube.RequestsOf(p)
		}
		now[p], out[i] = r, r
	}
	*s = now
	return out
}

// totals is what the pods of each class request together. A class that requests nothing is not in it: whether it has
// pods makes no difference to what the groups are given.
type totals map[corev1.PodQOSClass]kube.Requests

func totalsOf(pods []kube.Requests) totals {
	out := totals{}
	for _, p := range pods {
		if p.MilliCPU == 0 && p.Memory == 0 {
			continue
		}
		sum := out[p.Class]
		out[p.Class] = kube.Requests{Class: p.Class, MilliCPU: sum.MilliCPU + p.MilliCPU, Memory: sum.Memory + p.Memory}
	}
	return out
}

// counts is what a pod adds to its class: nothing before it was taken in, nor after its end. A resize changes the rest.
type counts struct {
	active           bool
	milliCPU, memory int64
}

func (c *classes) counts(p *corev1.Pod) counts {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return counts{c.pods.Has(p.UID) && !ended, requests.Cpu().MilliValue(), requests.Memory().Value()}
}

// shareDelay gathers the pods that come and go together.
const shareDelay = 200 * time.Millisecond

// run keeps the CPU share of the Burstable pods as a whole the sum of their requests, until ctx ends. It begins when a
// pod comes or read is closed.
func (c *classes) run(ctx context.Context, read <-chan struct{}) {
	changed := make(chan struct{}, 1)
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		counted := map[types.UID]counts{}
		// It ends with ctx.
		_ = c.pods.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
			before, now := counted[p.UID], c.counts(p)
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
		if err := c.sync(); err != nil {
			c.log.Warn("CPU shares of the pod classes are not up to date", "error", err)
		}
	}
}
