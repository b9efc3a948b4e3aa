// Package resourceclaim makes the claims of pods that name templates of them, and frees the devices of claims whose
// pods have ended.
package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 10
	// behind is how long the watch of claims may be late.
	behind = 5 * time.Minute
	// most are the claims that may be made in that time.
	most = 20000
)

// key is a pod whose claims are looked at, or a claim.
type key struct {
	claim bool
	name  cache.ObjectName
}

// Deps are what the controller works with.
type Deps struct {
	Client    kubernetes.Interface
	Pods      coreinformers.PodInformer
	Claims    resourceinformers.ResourceClaimInformer
	Templates resourceinformers.ResourceClaimTemplateInformer
	Events    record.EventRecorder
	Log       *slog.Logger
}

type maker struct {
	client    kubernetes.Interface
	pods      corelisters.PodLister
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
	ofPods    cache.Indexer // pods
	owned     cache.MutationCache
	events    record.EventRecorder
}

// byOwner is the index of claims by the pod that controls them, byTemplate that of pods by the templates that they
// name.
const (
	byOwner    = "owner"
	byTemplate = "resourceClaimTemplates"
)

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := d.Claims.Informer().AddIndexers(cache.Indexers{byOwner: ownerOf}); err != nil {
		return nil, fmt.Errorf("index claims by owner: %w", err)
	}
	// The informer of pods is not this controller's, and has the index after it was made once.
	if err := controller.Index(d.Pods.Informer(), byTemplate, templatesOf); err != nil {
		return nil, err
	}
	m := &maker{
		client: d.Client, pods: d.Pods.Lister(), claims: d.Claims.Lister(), templates: d.Templates.Lister(),
		ofPods: d.Pods.Informer().GetIndexer(), events: d.Events,
		// A claim has a name that nobody knows beforehand: what was made and is not heard of yet is known here alone.
		// What a controller before this one has made is in the informer's first list.
		owned: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), d.Claims.Informer().GetStore(), cache.MutationCacheOptions{
			Indexer: d.Claims.Informer().GetIndexer(), TTL: behind, IncludeAdds: true, MaxCacheSize: most,
		}),
	}
	return controller.NewLoop(d.Log, workers, m.sync).Of(func(k key) string { return k.name.Namespace }).
		Watch(d.Pods.Informer(), m.ofPod).
		Watch(d.Templates.Informer(), m.ofTemplate).
		WatchChanges(d.Claims.Informer(), m.claimChanged), nil
}

func ownerOf(o any) ([]string, error) {
	c, ok := o.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, nil
	}
	if r := metav1.GetControllerOfNoCopy(c); r != nil && r.Kind == "Pod" {
		return []string{string(r.UID)}, nil
	}
	return nil, nil
}

func templatesOf(o any) ([]string, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var all []string
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			all = append(all, p.Namespace+"/"+*c.ResourceClaimTemplateName)
		}
	}
	return all, nil
}

// ofPod has a pod that uses claims looked at, and when it has ended, or is gone, its claims.
func (m *maker) ofPod(o any) []key {
	p, ok := o.(*corev1.Pod)
	if !ok || len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	keys := []key{{name: cache.MetaObjectToName(p)}}
	for name := range resourceclaim.PodClaims(p) {
		keys = append(keys, key{true, cache.NewObjectName(p.Namespace, name)})
	}
	return keys
}

// ofTemplate are the pods that may have waited for a template.
func (m *maker) ofTemplate(o any) []key {
	t, ok := o.(*resourcev1.ResourceClaimTemplate)
	if !ok {
		return nil
	}
	all, err := m.ofPods.ByIndex(byTemplate, t.Namespace+"/"+t.Name)
	if err != nil {
		return nil // the index is made before it is asked
	}
	var keys []key
	for _, o := range all {
		if p, ok := o.(*corev1.Pod); ok {
			keys = append(keys, key{name: cache.MetaObjectToName(p)})
		}
	}
	return keys
}

func (m *maker) claimChanged(before, after any) []key {
	if before != nil && after == nil {
		if c, ok := before.(*resourcev1.ResourceClaim); ok {
			m.owned.OnDelete(c)
		}
		return m.ofClaim(before)
	}
	return m.ofClaim(after)
}

// ofClaim is a claim, and the pod that it was made for: one that is gone is made again.
func (m *maker) ofClaim(o any) []key {
	c, ok := o.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	keys := []key{{true, cache.MetaObjectToName(c)}}
	if r := metav1.GetControllerOfNoCopy(c); r != nil && r.Kind == "Pod" {
		keys = append(keys, key{name: cache.NewObjectName(c.Namespace, r.Name)})
	}
	return keys
}

func (m *maker) sync(ctx context.Context, k key) (time.Duration, error) {
	if k.claim {
		return 0, m.syncClaim(ctx, k.name)
	}
	return 0, m.syncPod(ctx, k.name)
}

// syncPod has all claims of a pod be there, and the pod know their names.
func (m *maker) syncPod(ctx context.Context, name cache.ObjectName) error {
	p, err := m.pods.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find pod %s: %w", name, err)
	}
	if p.DeletionTimestamp != nil || hasEnded(p) {
		return nil
	}
	made := map[string]string{}
	var failed []error
	for i := range p.Spec.ResourceClaims {
		c := &p.Spec.ResourceClaims[i]
		if c.ResourceClaimTemplateName == nil {
			continue
		}
		of, err := m.ensure(ctx, p, c)
		switch {
		case controller.Ended(err) && !errors.Is(err, errNoTemplate):
			return nil // its namespace is going
		case err != nil:
			m.events.Eventf(p, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", c.Name, err)
			failed = append(failed, fmt.Errorf("make claim %s of pod %s: %w", c.Name, name, err))
		case of != "":
			made[c.Name] = of
		}
	}
	if err := m.tell(ctx, p, made); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func hasEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
