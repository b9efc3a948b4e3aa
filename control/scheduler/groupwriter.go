package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// groupWriter tells the API whether groups of pods have been given nodes, beside the scheduler's loop. Of several
// things to tell of a group the last one counts, but that it was given nodes once stays so.
type groupWriter struct {
	client kubernetes.Interface
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
	mu     sync.Mutex
	latest map[cache.ObjectName]*groupNote
}

type groupNote struct {
	uid       types.UID
	condition metav1.Condition
}

func newGroupWriter(client kubernetes.Interface, log *slog.Logger) *groupWriter {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](50*time.Millisecond, 5*time.Second)
	return &groupWriter{
		client: client, log: log, queue: workqueue.NewTypedRateLimitingQueue(limit), latest: map[cache.ObjectName]*groupNote{},
	}
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if had != nil {
		if had.Status == metav1.ConditionTrue || w.latest[key] == nil && had.Status == now.Status && had.Message == now.Message {
			return
		}
		if had.Status == now.Status {
			now.LastTransitionTime = had.LastTransitionTime
		}
	}
	if before := w.latest[key]; before != nil && before.uid == group.UID && before.condition.Status == metav1.ConditionTrue {
		return
	}
	w.latest[key] = &groupNote{group.UID, now}
	w.queue.Add(key)
}

func (w *groupWriter) run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() {
		for w.next(ctx) {
		}
	})
	<-ctx.Done()
	w.queue.ShutDown()
	group.Wait()
}

func (w *groupWriter) next(ctx context.Context) bool {
	key, ended := w.queue.Get()
	if ended {
		return false
	}
	defer w.queue.Done(key)
	w.mu.Lock()
	n := w.latest[key]
	delete(w.latest, key)
	w.mu.Unlock()
	if n == nil || ctx.Err() != nil {
		return true
	}
	err := w.write(ctx, key, n)
	switch {
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		w.queue.Forget(key)
	case w.queue.NumRequeues(key) >= writeTries:
		w.log.Warn("condition of a pod group is not written", "group", key, "error", err)
		w.queue.Forget(key)
	default:
		w.mu.Lock()
		if w.latest[key] == nil {
			w.latest[key] = n
		}
		w.mu.Unlock()
		w.queue.AddRateLimited(key)
	}
	return true
}

func (w *groupWriter) write(ctx context.Context, key cache.ObjectName, n *groupNote) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.uid}, "status": map[string]any{"conditions": []metav1.Condition{n.condition}},
	})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = w.client.SchedulingV1beta1().PodGroups(key.Namespace).Patch(ctx, key.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}
