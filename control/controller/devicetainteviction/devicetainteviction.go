// Package devicetainteviction ends pods whose claims have devices with taints that the claims do not tolerate, or not
// for so long.
package devicetainteviction

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/devices"
)

const workers = 8

// key is a pod, or a rule whose status is looked at.
type key struct {
	rule bool
	name cache.ObjectName
}

// Deps are what the controller works with.
type Deps struct {
	Client kubernetes.Interface
	Pods   coreinformers.PodInformer
	Claims resourceinformers.ResourceClaimInformer
	Slices resourceinformers.ResourceSliceInformer
	Rules  resourceinformers.DeviceTaintRuleInformer
	Events record.EventRecorder
	Log    *slog.Logger
}

type evicter struct {
	client  kubernetes.Interface
	pods    corelisters.PodLister
	claims  resourcelisters.ResourceClaimLister
	rules   resourcelisters.DeviceTaintRuleLister
	devices cache.Indexer // slices, by device
	events  record.EventRecorder
	now     func() time.Time

	mu sync.Mutex
	// evicted are how many pods each rule has ended since this process knows it.
	evicted map[string]int
}

// byDevice is the index of slices by the devices in them.
const byDevice = "device"

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := d.Slices.Informer().AddIndexers(cache.Indexers{byDevice: devicesOf}); err != nil {
		return nil, fmt.Errorf("index slices by device: %w", err)
	}
	e := &evicter{
		client: d.Client, pods: d.Pods.Lister(), claims: d.Claims.Lister(), rules: d.Rules.Lister(),
		devices: d.Slices.Informer().GetIndexer(), events: d.Events, now: time.Now, evicted: map[string]int{},
	}
	return controller.NewLoop(d.Log, workers, e.sync).Of(func(k key) string { return k.name.Namespace }).
		Watch(d.Claims.Informer(), e.ofClaim).
		Watch(d.Pods.Informer(), e.ofPod).
		Watch(d.Slices.Informer(), e.ofSlice).
		WatchChanges(d.Rules.Informer(), e.ruleChanged), nil
}

func id(driver, pool, device string) string { return driver + "/" + pool + "/" + device }

func devicesOf(o any) ([]string, error) {
	s, ok := o.(*resourcev1.ResourceSlice)
	if !ok {
		return nil, nil
	}
	var all []string
	for i := range s.Spec.Devices {
		if len(s.Spec.Devices[i].Taints) > 0 {
			all = append(all, id(s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name))
		}
	}
	return all, nil
}

// ofPod is a pod that has a node and uses claims.
func (e *evicter) ofPod(o any) []key {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" || len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	return []key{{name: cache.MetaObjectToName(p)}}
}

// ofClaim are the pods that a claim is reserved for, and the rules that end them.
func (e *evicter) ofClaim(o any) []key {
	c, ok := o.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	keys := usersOf(c)
	rules, err := e.rules.List(labels.Everything())
	if err != nil {
		return keys // a lister of what is in memory does not fail
	}
	for _, r := range rules {
		// What a rule without effect would do is said once.
		if r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute && e.ends(c, r) {
			keys = append(keys, key{rule: true, name: cache.NewObjectName("", r.Name)})
		}
	}
	return keys
}

func usersOf(c *resourcev1.ResourceClaim) []key {
	var keys []key
	for _, r := range c.Status.ReservedFor {
		if r.APIGroup == "" && r.Resource == "pods" {
			keys = append(keys, key{name: cache.NewObjectName(c.Namespace, r.Name)})
		}
	}
	return keys
}

// users are the pods whose claims have devices that f is about.
func (e *evicter) users(f func(*resourcev1.DeviceRequestAllocationResult) bool) []key {
	all, err := e.claims.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	var keys []key
	for _, c := range all {
		if has(c, f) {
			keys = append(keys, usersOf(c)...)
		}
	}
	return keys
}

func has(c *resourcev1.ResourceClaim, f func(*resourcev1.DeviceRequestAllocationResult) bool) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for i := range c.Status.Allocation.Devices.Results {
		if f(&c.Status.Allocation.Devices.Results[i]) {
			return true
		}
	}
	return false
}

// ofSlice are the pods with devices of a slice that has taints, or had.
func (e *evicter) ofSlice(o any) []key {
	s, ok := o.(*resourcev1.ResourceSlice)
	if !ok {
		return nil
	}
	if tainted, _ := devicesOf(s); len(tainted) == 0 { // it does not fail
		return nil
	}
	return e.users(func(r *resourcev1.DeviceRequestAllocationResult) bool {
		return r.Driver == s.Spec.Driver && r.Pool == s.Spec.Pool.Name
	})
}

func (e *evicter) ruleChanged(before, after any) []key {
	was, _ := before.(*resourcev1.DeviceTaintRule)
	is, _ := after.(*resourcev1.DeviceTaintRule)
	if was != nil && is != nil && was.Generation == is.Generation && was.UID == is.UID {
		return nil // its status was written
	}
	var keys []key
	for _, r := range []*resourcev1.DeviceTaintRule{was, is} {
		if r != nil {
			keys = append(keys, key{rule: true, name: cache.NewObjectName("", r.Name)})
			keys = append(keys, e.users(func(d *resourcev1.DeviceRequestAllocationResult) bool {
				return devices.Selects(r, d.Driver, d.Pool, d.Device)
			})...)
		}
	}
	return keys
}

func (e *evicter) sync(ctx context.Context, k key) (time.Duration, error) {
	if k.rule {
		return e.syncRule(ctx, k.name.Name)
	}
	p, err := e.pods.Pods(k.name.Namespace).Get(k.name.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", k.name, err)
	}
	if !goes(p) {
		return 0, nil
	}
	all, err := e.taintsOf(p)
	if err != nil {
		return 0, err
	}
	at, by := deadline(all, e.now())
	if by == nil {
		return 0, nil
	}
	if left := at.Sub(e.now()); left > 0 {
		return left, nil
	}
	return 0, e.evict(ctx, p, by)
}

// goes says whether a pod is one that can be ended.
func goes(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// evict says why a pod ends, and ends it.
func (e *evicter) evict(ctx context.Context, p *corev1.Pod, by *taint) error {
	err := controller.Disrupt(ctx, e.client, p, "DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint", "", e.now())
	if err == nil {
		err = e.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	e.events.Eventf(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion: device %s has a taint that its claim does not tolerate", by.device)
	if by.rule != "" {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.evicted[by.rule]++
	}
	return nil
}

// taintsOf are all taints of the devices of a pod's claims.
func (e *evicter) taintsOf(p *corev1.Pod) ([]taint, error) {
	rules, err := e.rules.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list rules that taint devices: %w", err)
	}
	var all []taint
	for name := range resourceclaim.PodClaims(p) {
		c, err := e.claims.ResourceClaims(p.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find claim %s/%s: %w", p.Namespace, name, err)
		}
		if c.Status.Allocation == nil || !resourceclaim.IsReservedForPod(p, c, false) {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			all = append(all, e.taints(c, &c.Status.Allocation.Devices.Results[i], rules)...)
		}
	}
	return all, nil
}

// taints are those of one device, by its slice and by rules.
func (e *evicter) taints(c *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult, rules []*resourcev1.DeviceTaintRule) []taint {
	device := id(r.Driver, r.Pool, r.Device)
	t := taint{device: device, tolerations: r.Tolerations, since: c.Status.Allocation.AllocationTimestamp}
	var all []taint
	slices, err := e.devices.ByIndex(byDevice, device)
	if err != nil {
		return nil // the index is made before it is asked
	}
	for _, s := range newest(slices) {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; d.Name == r.Device {
				for _, t.DeviceTaint = range d.Taints {
					all = append(all, t)
				}
			}
		}
	}
	for _, rule := range rules {
		if devices.Selects(rule, r.Driver, r.Pool, r.Device) {
			t.DeviceTaint, t.rule = devices.Taint(rule), rule.Name
			all = append(all, t)
		}
	}
	return all
}

// newest are the slices of the newest generation of their pool: older ones are about to go.
func newest(all []any) []*resourcev1.ResourceSlice {
	var last []*resourcev1.ResourceSlice
	for _, o := range all {
		s, ok := o.(*resourcev1.ResourceSlice)
		switch {
		case !ok:
		case len(last) > 0 && s.Spec.Pool.Generation < last[0].Spec.Pool.Generation:
		case len(last) > 0 && s.Spec.Pool.Generation > last[0].Spec.Pool.Generation:
			last = []*resourcev1.ResourceSlice{s}
		default:
			last = append(last, s)
		}
	}
	return last
}
