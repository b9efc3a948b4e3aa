package pod

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
)

// link is what is between the agent and the runtime beside the work on pods.
type link struct {
	node    *node
	log     *slog.Logger
	orphans *orphans
}

// survey learns what the runtime is and what it has. It tries until it knows, and is false when ctx ends before.
func (l *link) survey(ctx context.Context) (map[types.UID]*corev1.Pod, bool) {
	for try := 0; ; try++ {
		found, err := l.ask(ctx)
		if err == nil {
			return found, true
		}
		if ctx.Err() != nil {
			return nil, false
		}
		l.log.Warn("runtime cannot be used", "error", err)
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(plan.Backoff(100*time.Millisecond, 10*time.Second, try+1)):
		}
	}
}

func (l *link) ask(ctx context.Context) (map[types.UID]*corev1.Pod, error) {
	v, err := l.node.cfg.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for the runtime's version: %w", err)
	}
	l.node.runtimeName = v.GetRuntimeName()
	s, err := l.node.cfg.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for the runtime's status: %w", err)
	}
	l.node.mountOptions = s.GetFeatures().GetMountOptions()
	l.node.handlers = map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range s.GetRuntimeHandlers() {
		l.node.handlers[h.GetName()] = h.GetFeatures()
	}
	return l.findAll(ctx)
}

// listen routes the runtime's events to the workers.
func (l *link) listen(ctx context.Context) {
	for try := 0; ctx.Err() == nil; try++ {
		// What happened before the runtime began to tell is looked for once it does.
		settled := time.AfterFunc(time.Second, func() {
			l.node.registry.lookAll()
			l.orphans.look()
		})
		began := time.Now()
		err := l.node.cfg.Runtime.Events(ctx, func(e *runtimeapi.ContainerEventResponse) {
			uid := types.UID(e.GetPodSandboxStatus().GetMetadata().GetUid())
			if w, ok := l.node.registry.get(uid); ok {
				w.mail.putEvent(e)
			} else if uid != "" && l.orphans.tells(e) {
				l.orphans.look()
			}
		})
		settled.Stop()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			try = 0
		}
		wait := plan.Backoff(time.Second, 30*time.Second, try+1)
		if grpcstatus.Code(err) == codes.Unimplemented {
			wait = time.Second // without events it has to be asked
		} else {
			l.log.Warn("runtime has stopped telling events", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}
