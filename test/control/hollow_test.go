package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-node/berth/control/controller"
)

// leaseEvery is how often a hollow node says that it lives, as nodes do.
const leaseEvery = 10 * time.Second

// hollow is nodes without a machine: what a cluster sees of their pods is what a test says. Where the control plane has
// no scheduler, it binds pods, too.
type hollow struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	loop   *controller.Loop[cache.ObjectName]
	names  []string
	binds  bool
	turn   atomic.Int64 // whose turn it is to be given a pod

	mu     sync.Mutex
	status func(*corev1.Pod) corev1.PodStatus
	off    map[string]bool // nodes whose power is cut
}

// hollow has nodes of names (as named has them), and binds pods to them, until the test ends. Its pods run and are
// ready at once; say has them do something else.
func (p *plane) hollow(t *testing.T, names ...string) *hollow {
	t.Helper()
	return p.hollowWith(t, true, names...)
}

// hollowWith is hollow, and says whether it binds pods.
func (p *plane) hollowWith(t *testing.T, binds bool, names ...string) *hollow {
	t.Helper()
	return p.hollowEvery(t, leaseEvery, binds, names...)
}

// hollowEvery is hollowWith, and says how often the nodes say that they live.
func (p *plane) hollowEvery(t *testing.T, every time.Duration, binds bool, names ...string) *hollow {
	t.Helper()
	// The pods of others that share the control plane are none of these nodes' business.
	scope := metav1.NamespaceAll
	if p.shared {
		scope = p.ns
	}
	names = slices.Clone(names)
	for i, name := range names {
		names[i] = p.named(name)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(scope))
	pods, nodes := factory.Core().V1().Pods(), factory.Core().V1().Nodes()
	h := &hollow{client: p.client, pods: pods.Lister(), nodes: nodes.Lister(), names: names, binds: binds, status: running, off: map[string]bool{}}
	key := func(o any) []cache.ObjectName { return []cache.ObjectName{cache.MetaObjectToName(o.(metav1.Object))} }
	// A node that is made, or changed, may be the one that a pod waits for.
	all := func(any) []cache.ObjectName { return h.unbound() }
	h.loop = controller.NewLoop(slog.New(slog.DiscardHandler), 8, h.sync).
		WatchOwn(nodes.Informer(), all).WatchOwn(pods.Informer(), key)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
		for _, name := range names {
			if p.shared {
				p.away(t, name)
			}
		}
	})
	for i, name := range names {
		h.join(t, name, p.ns)
		group.Go(func() { h.beat(ctx, name, every, every*time.Duration(i+1)/time.Duration(len(names))) })
	}
	group.Go(func() { h.loop.Run(ctx) })
	return h
}

// say has pods have another status from now on, those that are there too.
func (h *hollow) say(status func(*corev1.Pod) corev1.PodStatus) {
	h.mu.Lock()
	h.status = status
	h.mu.Unlock()
	h.look()
}

// look has the status of all pods asked for again.
func (h *hollow) look() {
	for _, p := range h.all() {
		h.loop.Add(cache.MetaObjectToName(p))
	}
}

func (h *hollow) all() []*corev1.Pod {
	all, err := h.pods.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	return all
}

func (h *hollow) unbound() []cache.ObjectName {
	var keys []cache.ObjectName
	for _, p := range h.all() {
		if p.Spec.NodeName == "" {
			keys = append(keys, cache.MetaObjectToName(p))
		}
	}
	return keys
}

// join makes a node that is ready.
func (h *hollow) join(t *testing.T, name, of string) {
	t.Helper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("1000"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	n, err := h.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux", ofLabel: of}},
		// As a kubelet that registers says it.
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Hollow", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Status.Allocatable) != len(room) {
		t.Fatalf("the status of a node that registers is %v", n.Status)
	}
}

// beat keeps the lease of a node, or the node would be taken for lost. Nodes do so at different times.
func (h *hollow) beat(ctx context.Context, name string, every, first time.Duration) {
	for next := first; ; next = every {
		if !h.isOff(name) {
			h.renew(ctx, name)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

func (h *hollow) renew(ctx context.Context, name string) {
	leases := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(40)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	old, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		l = old
	}
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now, LeaseDurationSeconds: &seconds}
	if err == nil {
		_, _ = leases.Update(ctx, l, metav1.UpdateOptions{})
	} else {
		_, _ = leases.Create(ctx, l, metav1.CreateOptions{})
	}
}

// sync brings a pod on: bound, then with the status that the test has for it, and gone when it is deleted.
func (h *hollow) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	p, err := h.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil {
		return 0, nil // it is gone
	}
	pods := h.client.CoreV1().Pods(p.Namespace)
	switch {
	case p.Spec.NodeName == "":
		if err = h.bind(ctx, p); err != nil {
			return 0, err
		}
		return 0, nil
	case !slices.Contains(h.names, p.Spec.NodeName) || h.isOff(p.Spec.NodeName):
		return 0, nil
	case p.DeletionTimestamp != nil:
		now := int64(0)
		err = pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	default:
		h.mu.Lock()
		status := h.status(p)
		h.mu.Unlock()
		if same(p, status) {
			return 0, nil
		}
		changed := p.DeepCopy()
		keep := slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool {
			return slices.ContainsFunc(status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		})
		qos := p.Status.QOSClass
		// What claims a pod has others say.
		status.ResourceClaimStatuses, status.ExtendedResourceClaimStatus = p.Status.ResourceClaimStatuses, p.Status.ExtendedResourceClaimStatus
		changed.Status = status
		changed.Status.Conditions, changed.Status.QOSClass = append(keep, status.Conditions...), qos
		_, err = pods.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}

// bind gives a pod to the next node that it may be on.
func (h *hollow) bind(ctx context.Context, p *corev1.Pod) error {
	if !h.binds || p.DeletionTimestamp != nil || len(p.Spec.SchedulingGates) > 0 {
		return nil
	}
	wants := nodeaffinity.GetRequiredNodeAffinity(p)
	from := int(h.turn.Add(1))
	for i := range h.names {
		n, err := h.nodes.Get(h.names[(from+i)%len(h.names)])
		if err != nil {
			continue
		}
		if ok, err := wants.Match(n); err != nil || !ok {
			continue
		}
		err = h.client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: n.Name},
		}, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	return nil
}

// same says whether a pod has a status already, times and what others set aside.
func same(p *corev1.Pod, s corev1.PodStatus) bool {
	if p.Status.Phase != s.Phase || len(p.Status.ContainerStatuses) != len(s.ContainerStatuses) {
		return false
	}
	for i, c := range s.ContainerStatuses {
		if has := p.Status.ContainerStatuses[i]; has.Ready != c.Ready || has.RestartCount != c.RestartCount || (has.State.Terminated == nil) != (c.State.Terminated == nil) {
			return false
		}
	}
	return !slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return !slices.ContainsFunc(p.Status.Conditions, func(has corev1.PodCondition) bool { return has.Type == c.Type && has.Status == c.Status })
	})
}

// running is the status of a pod that runs and is ready.
func running(p *corev1.Pod) corev1.PodStatus { return started(p, true) }

// unready is the status of a pod that runs and is not ready.
func unready(p *corev1.Pod) corev1.PodStatus { return started(p, false) }

func started(p *corev1.Pod, ready bool) corev1.PodStatus {
	now := metav1.Now()
	s := corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "192.0.2.1", StartTime: &now, ObservedGeneration: p.Generation,
		PodIP: "192.0.2.2", PodIPs: []corev1.PodIP{{IP: "192.0.2.2"}}, HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}},
	}
	if p.Status.StartTime != nil {
		s.StartTime = p.Status.StartTime
	}
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	for kind, status := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodInitialized: corev1.ConditionTrue, corev1.PodReady: is, corev1.ContainersReady: is,
	} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now, LastProbeTime: metav1.Time{}})
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "hollow://" + string(p.UID) + "/" + c.Name, Ready: ready, Started: &ready,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return s
}

// exited is the status of a pod whose containers have ended with a code.
func exited(code int32) func(p *corev1.Pod) corev1.PodStatus {
	return func(p *corev1.Pod) corev1.PodStatus {
		s := started(p, false)
		s.Phase = corev1.PodSucceeded
		if code != 0 {
			s.Phase = corev1.PodFailed
		}
		for i := range s.ContainerStatuses {
			s.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: code, Reason: map[bool]string{true: "Completed", false: "Error"}[code == 0], FinishedAt: metav1.Now(), StartedAt: *s.StartTime,
			}}
		}
		return s
	}
}

// TestHollow has a pod bound, run, be unready, end, and be gone: what other tests stand on.
func TestHollow(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a", "b")
	pods := p.client.CoreV1().Pods(p.ns)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	p.here(&pod.Spec)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is := func(what string, phase corev1.PodPhase, ready corev1.ConditionStatus) {
		t.Helper()
		until(t, "the pod is "+what, func() error {
			o, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
			if err == nil && (o.Status.Phase != phase || !slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == ready
			})) {
				err = fmt.Errorf("it has %v", o.Status)
			}
			return err
		})
	}
	is("ready", corev1.PodRunning, corev1.ConditionTrue)
	h.say(unready)
	is("not ready", corev1.PodRunning, corev1.ConditionFalse)
	h.say(exited(1))
	is("failed", corev1.PodFailed, corev1.ConditionFalse)
	if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod is gone", func() error {
		_, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is not: %w", err)
	})
}
