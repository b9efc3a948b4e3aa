package cri

import (
	"runtime"
	"sync"
	"testing"

	"github.com/berth-node/berth/cri/container"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestWantedOutput: a caller that uses little of a command's output costs little, here of many probes that write
// without end.
func TestWantedOutput(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Go(func() {
			// As a caller in this process says it, and as one behind the socket does.
			ctx := metadata.AppendToOutgoingContext(t.Context(), container.OutputKey, "10240")
			if i%2 == 1 {
				ctx = metadata.NewIncomingContext(t.Context(), metadata.Pairs(container.OutputKey, "10240"))
			}
			r, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "yes | head -c 12000000"}})
			if err != nil || len(r.GetStdout()) != 10<<10 || r.GetExitCode() != 0 {
				t.Errorf("got %d bytes, code %d, %v", len(r.GetStdout()), r.GetExitCode(), err)
			}
		})
	}
	wait.Wait()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 12<<20 {
		t.Errorf("%d bytes were allocated", got)
	}
}
