package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	writers      = 4
	writeTimeout = 30 * time.Second
	writeTries   = 5
)

// writer tells the API why pods have no node, beside the scheduler's loop. Of several things to tell of a pod the last
// one counts.
type writer struct {
	client kubernetes.Interface
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[types.UID]
	mu     sync.Mutex
	latest map[types.UID]*note
}

// note is what is to be told of a pod.
type note struct {
	pod       *corev1.Pod
	condition corev1.PodCondition
	nominated *string // nil: as it is
}

func newWriter(client kubernetes.Interface, log *slog.Logger) *writer {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](50*time.Millisecond, 5*time.Second)
	return &writer{client: client, log: log, queue: workqueue.NewTypedRateLimitingQueue(limit), latest: map[types.UID]*note{}}
}

func (w *writer) say(pod *corev1.Pod, reason, message string, nominating *fwk.NominatingInfo) {
	n := &note{pod: pod, condition: corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
	}}
	if nominating.Mode() == fwk.ModeOverride && nominating.NominatedNodeName != pod.Status.NominatedNodeName {
		n.nominated = &nominating.NominatedNodeName
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.latest[pod.UID]; before != nil && n.nominated == nil {
		n.nominated = before.nominated
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
	if same && n.nominated == nil && w.latest[pod.UID] == nil {
		return
	}
	w.latest[pod.UID] = n
	w.queue.Add(pod.UID)
}

func (w *writer) run(ctx context.Context) {
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for w.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	group.Wait()
}

func (w *writer) next(ctx context.Context) bool {
	uid, ended := w.queue.Get()
	if ended {
		return false
	}
	defer w.queue.Done(uid)
	w.mu.Lock()
	n := w.latest[uid]
	delete(w.latest, uid)
	w.mu.Unlock()
	if n == nil || ctx.Err() != nil {
		return true
	}
	err := w.write(ctx, n)
	switch {
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		w.queue.Forget(uid) // it is gone, or another one of its name is there
	case w.queue.NumRequeues(uid) >= writeTries:
		w.log.Warn("condition of a pod is not written", "pod", klog.KObj(n.pod), "error", err)
		w.queue.Forget(uid)
	default:
		w.mu.Lock()
		if w.latest[uid] == nil {
			w.latest[uid] = n
		}
		w.mu.Unlock()
		w.queue.AddRateLimited(uid)
	}
	return true
}

func (w *writer) write(ctx context.Context, n *note) error {
	status := map[string]any{"conditions": []corev1.PodCondition{n.condition}}
	if n.nominated != nil {
		status["nominatedNodeName"] = *n.nominated
		if *n.nominated == "" {
			status["nominatedNodeName"] = nil
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = w.client.CoreV1().Pods(n.pod.Namespace).Patch(ctx, n.pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	return nil
}
