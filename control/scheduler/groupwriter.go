package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// groupWriter tells the API whether groups of pods have been given nodes. That a group was given nodes once stays so.
type groupWriter struct {
	client kubernetes.Interface
	out    *outbox[cache.ObjectName, groupNote]
}

type groupNote struct {
	key       cache.ObjectName
	uid       types.UID
	condition metav1.Condition
}

func newGroupWriter(client kubernetes.Interface, log *slog.Logger) *groupWriter {
	w := &groupWriter{client: client}
	w.out = newOutbox(w.write, func(n *groupNote, err error) {
		log.Warn("condition of a pod group is not written", "group", n.key, "error", err)
	})
	return w
}

func (w *groupWriter) say(group *schedulingv1beta1.PodGroup, scheduled bool, message string) {
	now := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionFalse, Reason: schedulingv1beta1.PodGroupReasonUnschedulable,
		Message: message, ObservedGeneration: group.Generation, LastTransitionTime: metav1.Now(),
	}
	if scheduled {
		now.Status, now.Reason = metav1.ConditionTrue, "Scheduled"
	}
	had := meta.FindStatusCondition(group.Status.Conditions, now.Type)
	key := cache.MetaObjectToName(group)
	if had != nil && had.Status == now.Status {
		now.LastTransitionTime = had.LastTransitionTime
	}
	w.out.put(key, func(before *groupNote) *groupNote {
		switch {
		case had != nil && (had.Status == metav1.ConditionTrue || before == nil && had.Status == now.Status && had.Message == now.Message),
			before != nil && before.uid == group.UID && before.condition.Status == metav1.ConditionTrue:
			return nil
		}
		return &groupNote{key, group.UID, now}
	})
}

func (w *groupWriter) run(ctx context.Context) { w.out.run(ctx, 1) }

func (w *groupWriter) write(ctx context.Context, key cache.ObjectName, n *groupNote) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.uid}, "status": map[string]any{"conditions": []metav1.Condition{n.condition}},
	})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	_, err = w.client.SchedulingV1beta1().PodGroups(key.Namespace).Patch(ctx, key.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}
