package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// rescue has a pod wait, as after any error, whose attempt has panicked. Plugins look at objects of strangers, in one
// process with the API server and etcd: the pod is to wait, and not the cluster. It is deferred.
func rescue(ctx context.Context, s *Scheduler, t *try) {
	p := recover()
	if p == nil {
		return
	}
	s.log.Error("attempt to schedule a pod panics", "pod", klog.KObj(t.pod), "uid", t.pod.UID, "error", p, "stack", string(debug.Stack()))
	if t.bound {
		return
	}
	err := fmt.Errorf("panic: %v", p)
	if !s.cache.Assumed(t.pod.UID) {
		s.failed(ctx, t, err)
		return
	}
	defer func() {
		if recover() != nil { // a plugin cannot give up what it has reserved, either
			s.cache.Forget(t.pod.UID)
			s.failed(ctx, t, err)
		}
	}()
	s.shared.Waiting.Drop(t.pod.UID)
	s.undo(ctx, t, fwk.AsStatus(err))
}

// guarded has a panic of f be nothing but a line in the log.
func guarded(log *slog.Logger, what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("change of an object is not looked at", "kind", what, "error", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}
