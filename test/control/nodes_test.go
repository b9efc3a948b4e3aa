package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// joined makes a node that is ready, as its kubelet would.
func joined(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	n, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := c.CoreV1().Nodes().Patch(t.Context(), n.Name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	renew(t.Context(), c, name)
}

func renew(ctx context.Context, c kubernetes.Interface, name string) {
	now, leases := metav1.NowMicro(), c.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	l, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		_, _ = leases.Create(ctx, l, metav1.CreateOptions{})
	} else if err == nil {
		l.Spec.RenewTime = &now
		_, _ = leases.Update(ctx, l, metav1.UpdateOptions{})
	}
}

// TestSilentNode has one of two nodes be silent: it gets the taints of one that is not reached, its pods are not ready
// and are evicted when they tolerate it no longer. When its object is gone, so are they.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	core := p.client.CoreV1()
	for _, n := range []string{"live", "silent"} {
		joined(t, p.client, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for tick := time.NewTicker(5 * time.Second); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
				tick.Stop()
			case <-tick.C:
				renew(ctx, p.client, "live")
			}
		}
	}()
	until(t, "a node that is ready has no taints", func() error {
		n, err := core.Nodes().Get(t.Context(), "silent", metav1.GetOptions{})
		if err == nil && len(n.Spec.Taints) > 0 {
			err = fmt.Errorf("it has %v", n.Spec.Taints)
		}
		return err
	})
	p.equipped(t, "default")
	for name, seconds := range map[string]int64{"goes": 1, "stays": 3600} {
		_, err := core.Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: "silent", Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Tolerations: []corev1.Toleration{{
					Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
		if _, err := core.Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the node that is silent is not reached, and its pods are not ready", func() error {
		n, err := core.Nodes().Get(t.Context(), "silent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable && t.Effect == effect }) {
				return fmt.Errorf("it has %v", n.Spec.Taints)
			}
		}
		return conditionOf(t.Context(), p, "stays", corev1.PodReady, corev1.ConditionFalse)
	})
	until(t, "a pod is evicted", func() error {
		return conditionOf(t.Context(), p, "goes", corev1.DisruptionTarget, corev1.ConditionTrue)
	})
	until(t, "it is said of the pod that it goes", func() error {
		all, err := core.Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=goes,reason=TaintManagerEviction"})
		if err == nil && (len(all.Items) != 1 || all.Items[0].Source.Component != "taint-eviction-controller" ||
			all.Items[0].Message != "Marking for deletion Pod default/goes") {
			err = fmt.Errorf("it is said %+v", all.Items)
		}
		return err
	})
	if n, err := core.Nodes().Get(t.Context(), "live", metav1.GetOptions{}); err != nil || len(n.Spec.Taints) > 0 {
		t.Errorf("the node that is heard of has %v, %v", n.Spec.Taints, err)
	}
	if stays, err := core.Pods("default").Get(t.Context(), "stays", metav1.GetOptions{}); err != nil || stays.DeletionTimestamp != nil {
		t.Errorf("the pod that tolerates it is deleted: %v", err)
	}
	if err := core.Nodes().Delete(t.Context(), "silent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "pods of a node that is gone are gone", func() error {
		all, err := core.Pods("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = errors.New("they are there")
		}
		return err
	})
}

func conditionOf(ctx context.Context, p *plane, pod string, kind corev1.PodConditionType, status corev1.ConditionStatus) error {
	o, err := p.client.CoreV1().Pods("default").Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range o.Status.Conditions {
		if c.Type == kind && c.Status == status {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %v", o.Status.Conditions)
}
