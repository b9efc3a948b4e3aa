package events

import (
	"errors"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSubscriberThatDoesNotReadIsLetGo(t *testing.T) {
	h := &Hub{}
	none := func() (*runtimeapi.PodSandboxStatus, []*runtimeapi.ContainerStatus) { return nil, nil }
	block, entered := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	n := 0
	go func() {
		done <- h.Subscribe(t.Context(), func(*runtimeapi.ContainerEventResponse) error {
			if n++; n == 1 {
				close(entered)
				<-block
			}
			return nil
		})
	}()
	for {
		h.Publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, "x", none)
		select {
		case <-entered:
		default:
			continue
		}
		break
	}
	for range backlog + 10 {
		h.Publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, "x", none)
	}
	close(block)
	if err := <-done; !errors.Is(err, errBehind) {
		t.Errorf("got %v", err)
	}
}
