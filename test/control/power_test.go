package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	// graceFlag has nodes be taken for lost sooner, and often is how often those renew their leases then.
	graceFlag = "--node-monitor-grace-period=20s"
	grace     = 20 * time.Second
	often     = 3 * time.Second
)

// cut has nodes say and do nothing any more, as if their power were cut.
func (h *hollow) cut(names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		h.off[name] = true
	}
}

func (h *hollow) isOff(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.off[name]
}

// restore has nodes be there again: they say that they are well, and end the pods that are to end.
func (h *hollow) restore(t *testing.T, names ...string) {
	t.Helper()
	h.mu.Lock()
	for _, name := range names {
		delete(h.off, name)
	}
	h.mu.Unlock()
	for _, name := range names {
		h.renew(t.Context(), name)
		now := time.Now().UTC().Format(time.RFC3339)
		status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Hollow","message":"","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`, now, now)
		if _, err := h.client.CoreV1().Nodes().PatchStatus(t.Context(), name, []byte(status)); err != nil {
			t.Fatal(err)
		}
	}
	h.look()
}

// label gives a node a label.
func (p *plane) label(t *testing.T, node, key, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := p.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// lost waits until a node is taken for lost and nothing new comes to it: with that it has been decided, too, whether
// its pods go.
func (p *plane) lost(t *testing.T, name string) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	until(t, "node "+name+" is lost", func() (err error) {
		if node, err = p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if taint(node, corev1.TaintEffectNoSchedule) == nil {
			return fmt.Errorf("it has the taints %v", node.Spec.Taints)
		}
		return nil
	})
	return node
}

// given waits until a node is given up, and returns since when it is.
func (p *plane) given(t *testing.T, name string) time.Time {
	t.Helper()
	var since time.Time
	until(t, "node "+name+" is given up", func() error {
		node, err := p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found := taint(node, corev1.TaintEffectNoExecute)
		if found == nil {
			return fmt.Errorf("it has the taints %v", node.Spec.Taints)
		}
		since = found.TimeAdded.Time
		return nil
	})
	return since
}

// back waits until a node has no taints.
func (p *plane) back(t *testing.T, name string) {
	t.Helper()
	until(t, "node "+name+" has no taints", func() error {
		node, err := p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(node.Spec.Taints) > 0 {
			err = fmt.Errorf("it has %v", node.Spec.Taints)
		}
		return err
	})
}

// taint is the one of a node that is not reached.
func taint(n *corev1.Node, effect corev1.TaintEffect) *corev1.Taint {
	i := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable && t.Effect == effect })
	if i < 0 {
		return nil
	}
	return &n.Spec.Taints[i]
}

// tolerates has pods stay on a node that is lost for some seconds.
func tolerates(s *corev1.PodSpec, seconds int64) {
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		s.Tolerations = append(s.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
}

// chronicle is what has become of the pods and nodes of a cluster, by a watch since it was begun.
type chronicle struct {
	mu    sync.Mutex
	ended map[string]*corev1.Pod // pods that were to end, as they were first when they were
	given map[string]time.Time   // nodes that were given up
	err   error
}

// watch begins a chronicle, which ends with the test.
func (p *plane) watch(t *testing.T) *chronicle {
	t.Helper()
	h := &chronicle{ended: map[string]*corev1.Pod{}, given: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	for _, begin := range []func(context.Context, kubernetes.Interface) (watch.Interface, error){
		func(ctx context.Context, c kubernetes.Interface) (watch.Interface, error) {
			return c.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
		},
		func(ctx context.Context, c kubernetes.Interface) (watch.Interface, error) {
			return c.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		},
	} {
		w, err := begin(ctx, p.client)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for e := range w.ResultChan() {
				h.add(e)
			}
			if ctx.Err() == nil {
				h.mu.Lock()
				h.err = errors.New("a watch has ended")
				h.mu.Unlock()
			}
		})
	}
	return h
}

func (h *chronicle) add(e watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := e.Object.(type) {
	case *corev1.Pod:
		if o.DeletionTimestamp != nil && h.ended[o.Name] == nil {
			h.ended[o.Name] = o
		}
	case *corev1.Node:
		found := taint(o, corev1.TaintEffectNoExecute)
		if _, known := h.given[o.Name]; !known && found != nil {
			h.given[o.Name] = found.TimeAdded.Time
		}
	}
}

// read is what there is of it so far.
func (h *chronicle) read(t *testing.T) (ended map[string]*corev1.Pod, given map[string]time.Time) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		t.Fatal(h.err)
	}
	return maps.Clone(h.ended), maps.Clone(h.given)
}

// askedAt is when it was asked for that a pod ends, by what it says.
func askedAt(p *corev1.Pod) time.Time {
	return p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
}

// disrupted is when a pod was said to be ended by the control plane, and why.
func disrupted(p *corev1.Pod) (time.Time, string) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, c.Reason
		}
	}
	return time.Time{}, ""
}
