package volume

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/ownership"
	"github.com/berth-node/berth/internal/patience"
)

// takeGroup gives a volume and everything in it to the pod's group, where it has one. With the policy OnRootMismatch
// nothing is done when the volume's root says that it has been done. It is given up when the file system does not
// answer any more.
func takeGroup(ctx context.Context, calls *patience.Calls, pod *corev1.Pod, path string) error {
	s := pod.Spec.SecurityContext
	if s == nil || s.FSGroup == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	gid := uint32(*s.FSGroup)
	var looked atomic.Int64
	watching := make(chan struct{})
	defer func() { cancel(nil); <-watching }()
	go func() {
		defer close(watching)
		watch(ctx, &looked, func() { cancel(fmt.Errorf("give volume to group %d: it %w", gid, patience.ErrNoAnswer)) })
	}()
	p := s.FSGroupChangePolicy
	always := p == nil || *p != corev1.FSGroupChangeOnRootMismatch
	return calls.Do(ctx, "volume "+path, time.Second, func() error {
		return ownership.Give(ctx, path, gid, always, func() { looked.Add(1) })
	})
}

// watch calls dead when nothing has been done for as long as a file system has to answer.
func watch(ctx context.Context, looked *atomic.Int64, dead func()) {
	t := time.NewTicker(answers)
	defer t.Stop()
	for last := int64(-1); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := looked.Load()
		if now == last {
			dead()
			return
		}
		last = now
	}
}
