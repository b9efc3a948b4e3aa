// Package events hands what happens to sandboxes and containers to who subscribes to it.
package events

import (
	"context"
	"errors"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// backlog is how many events a subscriber may be behind. One that is further behind is told so, and has to list
// everything again; else a client that does not read would fill the memory.
const backlog = 16384

var errBehind = errors.New("subscriber is too far behind the events")

// Hub hands every event to every subscriber, to each in order, and waits for none.
type Hub struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

type subscriber struct {
	wake   chan struct{}
	queue  []*runtimeapi.ContainerEventResponse
	behind bool
}

// Subscribe calls fn with every event from now on, until ctx ends or fn fails.
func (h *Hub) Subscribe(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse) error) error {
	s := &subscriber{wake: make(chan struct{}, 1)}
	h.mu.Lock()
	if h.subs == nil {
		h.subs = map[*subscriber]struct{}{}
	}
	h.subs[s] = struct{}{}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.subs, s)
		h.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		}
		h.mu.Lock()
		queue, behind := s.queue, s.behind
		s.queue = nil
		h.mu.Unlock()
		for _, e := range queue {
			if err := fn(e); err != nil {
				return err
			}
		}
		if behind {
			return errBehind
		}
	}
}

// statuses are those of a sandbox and its containers, made only where somebody subscribes.
type statuses func() (*runtimeapi.PodSandboxStatus, []*runtimeapi.ContainerStatus)

// Publish tells of the sandbox or container id.
func (h *Hub) Publish(kind runtimeapi.ContainerEventType, id string, now statuses) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) == 0 {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	e.PodSandboxStatus, e.ContainersStatuses = now()
	for s := range h.subs {
		if len(s.queue) >= backlog {
			s.behind = true
		} else {
			s.queue = append(s.queue, e)
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}
