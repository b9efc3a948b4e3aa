package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Disrupt has a pod say why the control plane ends it, which a Job tells from a failure of its own, and the phase that
// it is in from then on, if any is given. It does nothing where the pod says so already.
func Disrupt(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, reason, message string, phase corev1.PodPhase, now time.Time) error {
	status := map[string]any{}
	if phase != "" && p.Status.Phase != phase {
		status["phase"] = phase
	}
	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	}) {
		status["conditions"] = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(now), ObservedGeneration: p.Generation,
		}}
	}
	if len(status) == 0 {
		return nil
	}
	// The UID keeps it from a pod that was made again under the name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err == nil {
		_, err = client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
