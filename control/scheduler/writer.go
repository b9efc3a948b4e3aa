package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// writers is how many pods are told of at once.
const writers = 4

// writer tells the API why pods have no node.
type writer struct {
	client kubernetes.Interface
	out    *outbox[types.UID, note]
}

// note is what is to be told of a pod.
type note struct {
	pod       *corev1.Pod
	condition corev1.PodCondition
	nominated *string // nil: as it is
}

func newWriter(client kubernetes.Interface, log *slog.Logger) *writer {
	w := &writer{client: client}
	w.out = newOutbox(w.write, func(n *note, err error) {
		log.Warn("condition of a pod is not written", "pod", klog.KObj(n.pod), "error", err)
	})
	return w
}

func (w *writer) say(pod *corev1.Pod, reason, message string, nominating *fwk.NominatingInfo) {
	n := &note{pod: pod, condition: corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
	}}
	if nominating.Mode() == fwk.ModeOverride && nominating.NominatedNodeName != pod.Status.NominatedNodeName {
		n.nominated = &nominating.NominatedNodeName
	}
	same := false
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled {
			continue
		}
		same = c.Status == n.condition.Status && c.Reason == reason && c.Message == message && c.ObservedGeneration == pod.Generation
		if c.Status == n.condition.Status {
			n.condition.LastTransitionTime = c.LastTransitionTime
		}
	}
	w.out.put(pod.UID, func(before *note) *note {
		if before != nil && n.nominated == nil {
			n.nominated = before.nominated
		}
		if same && n.nominated == nil && before == nil {
			return nil
		}
		return n
	})
}

func (w *writer) run(ctx context.Context) { w.out.run(ctx, writers) }

func (w *writer) write(ctx context.Context, _ types.UID, n *note) error {
	status := map[string]any{"conditions": []corev1.PodCondition{n.condition}}
	if n.nominated != nil {
		status["nominatedNodeName"] = *n.nominated
		if *n.nominated == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if err := w.patch(ctx, n.pod, status); err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}

// nominate tells where a pod is to be. It does so before the pod is bound, with which the API takes it back.
func (w *writer) nominate(ctx context.Context, pod *corev1.Pod, node string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := w.patch(ctx, pod, map[string]any{"nominatedNodeName": node}); err != nil {
		return fmt.Errorf("write nominated node: %w", err)
	}
	return nil
}

// patch changes the status of a pod, if it is still the same pod.
func (w *writer) patch(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err == nil {
		_, err = w.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	}
	return err
}
