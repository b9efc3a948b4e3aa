// Package resourcequota counts what there is of what quotas limit. Admission counts what is added; what goes, and what
// admission has counted and was not made after all, is counted here.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	library "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/apiserver/admission/quota"
	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 4
	// soon is how long changes are gathered before a namespace is counted: a hundred objects that go are one count.
	soon = 200 * time.Millisecond
	// learnAgain is when a kind is looked for again that is not served.
	learnAgain = 5 * time.Second
	// countAgain is when all is counted again: time alone ends what a pod that never ends counts for.
	countAgain  = 5 * time.Minute
	countPrefix = "count/"
)

// Deps are what the controller works with.
type Deps struct {
	Client    kubernetes.Interface
	Metadata  metadata.Interface
	Discovery discovery.ServerResourcesInterface
	Quotas    coreinformers.ResourceQuotaInformer
	Pods      coreinformers.PodInformer
	Log       *slog.Logger
}

type counter struct {
	deps    Deps
	quotas  corelisters.ResourceQuotaLister
	objects objects
	base    []library.Evaluator
	watches *watches
	loop    *controller.Loop[cache.ObjectName]
	ctx     func() context.Context
	charges charges

	mu      sync.Mutex
	kinds   map[schema.GroupResource]schema.GroupVersionResource
	learned time.Time // when it was asked for last what is served
	failed  error     // what of it was not answered
	now     func() time.Time
}

// New makes the controller.
func New(d Deps) controller.Controller {
	c := &counter{
		deps: d, quotas: d.Quotas.Lister(),
		kinds: map[schema.GroupResource]schema.GroupVersionResource{}, now: time.Now,
		charges: charges{since: map[cache.ObjectName]said{}},
	}
	c.objects = objects{d.Client, d.Metadata, d.Pods.Lister(), c.forget}
	c.base = quota.NewConfiguration(c.objects.of).Evaluators()
	c.watches = &watches{metadata: d.Metadata, changed: c.changed, all: map[schema.GroupVersionResource]bool{}}
	c.loop = controller.NewLoop(d.Log, workers, c.sync).
		Watch(d.Quotas.Informer(), func(o any) []cache.ObjectName {
			if q, ok := o.(*corev1.ResourceQuota); ok {
				return []cache.ObjectName{cache.MetaObjectToName(q)}
			}
			return nil
		}).
		Watch(d.Pods.Informer(), func(o any) []cache.ObjectName {
			if p, ok := o.(*corev1.Pod); ok {
				c.changed(p.Namespace)
			}
			return nil
		})
	return c
}

// Run implements [controller.Controller].
func (c *counter) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer c.watches.group.Wait()
	defer cancel()
	c.ctx = func() context.Context { return ctx }
	c.loop.Run(ctx)
}

// changed has the quotas of a namespace counted soon, or those of all.
func (c *counter) changed(namespace string) {
	all, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if namespace == "" {
		all, err = c.quotas.List(labels.Everything())
	}
	if err != nil {
		return // a lister of what is in memory does not fail
	}
	for _, q := range all {
		c.loop.AddAfter(cache.MetaObjectToName(q), soon)
	}
}

func (c *counter) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.charges.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find quota %s: %w", key, err)
	}
	again := countAgain
	unsettled := c.charges.unsettled(q, c.now()) // before anything is counted
	evaluators, unknown := c.evaluators(q)
	if unknown {
		again = learnAgain
	}
	used, err := library.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, generic.NewRegistry(evaluators), q.Spec.ScopeSelector)
	if err != nil {
		// What was counted is true, what was not stays as it was.
		err = fmt.Errorf("count for quota %s: %w", key, err)
	}
	status, kept := statusOf(q, used, unsettled > 0)
	if kept {
		again = min(again, unsettled)
	}
	if !equality.Semantic.DeepEqual(q.Status, status) {
		// Only of the version that was looked at: admission may have counted more since.
		changed := q.DeepCopy()
		changed.Status = status
		written, failed := c.deps.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if failed != nil && !apierrors.IsNotFound(failed) {
			return 0, errors.Join(err, fmt.Errorf("write status of quota %s: %w", key, failed))
		}
		if failed == nil {
			c.charges.counted(written)
		}
	}
	return again, err
}

// statusOf is what a quota says of what is used. Of what could not be counted it says what it did, and no less than
// that while it is unsettled, which is told.
func statusOf(q *corev1.ResourceQuota, used corev1.ResourceList, unsettled bool) (s corev1.ResourceQuotaStatus, kept bool) {
	s = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: corev1.ResourceList{}}
	for name := range q.Spec.Hard {
		n, counts := used[name]
		was, had := q.Status.Used[name]
		if had && (!counts || unsettled && was.Cmp(n) > 0) {
			n, kept = was, kept || counts
		}
		if counts || had {
			s.Used[name] = n
		}
	}
	return s, kept
}

// evaluators are those of what a quota names; what it names may be of a kind that is not served, or not yet. Each of
// their resources is watched from then on.
func (c *counter) evaluators(q *corev1.ResourceQuota) (all []library.Evaluator, unknown bool) {
	all = append(all, c.base...)
	names := library.ResourceNames(q.Spec.Hard)
	for _, e := range c.base {
		if r := e.GroupResource(); len(e.MatchingResources(names)) > 0 && r != corev1.Resource("pods") {
			c.watches.add(c.ctx(), r.WithVersion("v1"))
		}
	}
	for _, name := range names {
		text, is := strings.CutPrefix(string(name), countPrefix)
		if !is {
			continue
		}
		of := schema.ParseGroupResource(text)
		if known(c.base, of) {
			continue
		}
		r, err := c.resource(of)
		if err != nil {
			c.deps.Log.Debug("a quota names what is not served", "quota", cache.MetaObjectToName(q), "resource", of, "error", err)
			unknown = true
			continue
		}
		c.watches.add(c.ctx(), r)
		all = append(all, generic.NewObjectCountEvaluator(of, generic.ListResourceUsingListerFunc(c.objects.of, r), ""))
	}
	return all, unknown
}

func known(all []library.Evaluator, of schema.GroupResource) bool {
	for _, e := range all {
		if e.GroupResource() == of {
			return true
		}
	}
	return false
}

// resource is the version that a resource is served in. For what is not served it is asked once for all quotas that
// name such: there may be thousands, and each asks again.
func (c *counter) resource(of schema.GroupResource) (schema.GroupVersionResource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, is := c.kinds[of]; is {
		return r, nil
	}
	if now := c.now(); c.learned.IsZero() || now.Sub(c.learned) >= learnAgain {
		c.learn()
		c.learned = now
	}
	if r, is := c.kinds[of]; is {
		return r, nil
	}
	return schema.GroupVersionResource{}, errors.Join(errors.New("no such resource is served"), c.failed)
}

// forget has it be asked again in which version a resource is served, which is not the one that was known.
func (c *counter) forget(r schema.GroupVersionResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[r.GroupResource()] == r {
		delete(c.kinds, r.GroupResource())
	}
}

// learn asks what is served. Of what is not told of now what was known stays: its server may be away.
func (c *counter) learn() {
	lists, err := c.deps.Discovery.ServerPreferredNamespacedResources()
	for _, l := range lists {
		gv, unread := schema.ParseGroupVersion(l.GroupVersion)
		if unread != nil {
			continue
		}
		for _, r := range l.APIResources {
			c.kinds[schema.GroupResource{Group: gv.Group, Resource: r.Name}] = gv.WithResource(r.Name)
		}
	}
	c.failed = err
}
