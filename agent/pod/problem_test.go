package pod

import (
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
)

// A pod that the runtime cannot manage at the moment is shown with the reason, and is what it was when that is over.
func TestNotAnswering(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		set := func(problem string) {
			n.rt.locked(func() {
				n.rt.problem = problem
				for id := range n.rt.sandboxes {
					n.rt.tell(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
				}
			})
			n.pass(time.Second)
		}
		set("keeper does not answer")
		if st := n.pod("web").Status; st.Reason != ReasonNotAnswering || st.Message != "keeper does not answer" {
			t.Errorf("status is %q, %q", st.Reason, st.Message)
		}
		if got := n.message("web", ReasonNotAnswering); got != "keeper does not answer" {
			t.Errorf("event %q", got)
		}
		set("")
		n.is("web", "Running main:0:running")
		if st := n.pod("web").Status; st.Reason != "" || strings.Count(n.happened("web"), ReasonNotAnswering) != 1 {
			t.Errorf("status is %q, events %s", st.Reason, n.happened("web"))
		}
	})
}
