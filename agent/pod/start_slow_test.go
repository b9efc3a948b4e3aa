package pod

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/podtest"
)

// A start that takes longer than is waited for comes to its end in the runtime all the same, beside the next one if
// nobody ends it.
func TestStartThatTakesTooLong(t *testing.T) {
	for name, canStop := range map[string]bool{"CalledOff": true, "NotCalledOff": false} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *testNode) {
				var first atomic.Value
				n.rt.during = func(ctx context.Context, call string) {
					id, _ := first.Load().(string)
					switch {
					case strings.HasPrefix(call, "StartContainer ") && id == "":
						first.Store(strings.TrimPrefix(call, "StartContainer "))
						<-ctx.Done()
					case call == "StopContainer "+id+" 0" && canStop:
						n.rt.run(id) // it waits until it can be stopped
					case strings.HasPrefix(call, "CreateContainer ") && id != "" && canStop:
						if !n.rt.started(id) || len(n.rt.running()) > 0 {
							t.Error("the next one is made before the first has come to its end")
						}
					case strings.HasPrefix(call, "StartContainer "):
						n.rt.run(id)
					}
				}
				n.rt.refuse = func(call string) error {
					if id, _ := first.Load().(string); !canStop && call == "StopContainer "+id+" 0" {
						return errors.New("not now")
					}
					return nil
				}
				n.apply(podtest.New("web"))
				n.pass(containerTimeout + 2*time.Minute)
				id, _ := first.Load().(string)
				if got := n.rt.running(); len(got) != 1 || got[0] == id || !n.rt.started(id) && n.rt.containers[id] != nil {
					t.Errorf("%v run, %s was given up", got, id)
				}
			})
		})
	}
}

// started says whether a container runs or did.
func (f *fake) started(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.containers[id] != nil && f.containers[id].StartedAt > 0
}

// run has a container run whose start was given up.
func (f *fake) run(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil || c.State != plan.Created {
		return
	}
	c.State, c.StartedAt = plan.Running, time.Now().UnixNano()
	f.tell(id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
}
