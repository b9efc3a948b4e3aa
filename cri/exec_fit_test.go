package cri

import (
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAnswerOfExecSyncFitsAMessage(t *testing.T) {
	const message = 16 << 20 // what kubelet and crictl take
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{10, 20, 10, 20},
		{maxOutput, 0, maxOutput, 0},
		{maxOutput, 7, maxOutput - 7, 7},
		{7, maxOutput, 7, maxOutput - 7},
		{maxOutput, maxOutput, maxOutput / 2, maxOutput / 2},
		{maxOutput/2 + 1, maxOutput/2 + 1, maxOutput / 2, maxOutput / 2},
	} {
		out, errOut := fit(make([]byte, c.out), make([]byte, c.err))
		if len(out) != c.wantOut || len(errOut) != c.wantErr {
			t.Errorf("%d and %d bytes: got %d and %d, want %d and %d", c.out, c.err, len(out), len(errOut), c.wantOut, c.wantErr)
		}
		if n := proto.Size(&runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: -1}); n > message {
			t.Errorf("%d and %d bytes: the answer has %d", c.out, c.err, n)
		}
	}
}

// TestWantedOutput: a caller that uses little of a command's output costs little, here of many probes that write without end.
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
			ctx := metadata.AppendToOutgoingContext(t.Context(), outputKey, "10240")
			if i%2 == 1 {
				ctx = metadata.NewIncomingContext(t.Context(), metadata.Pairs(outputKey, "10240"))
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
	for _, bad := range []string{"", "x", "-1", "99999999999", "1 "} {
		if got := wantedOutput(metadata.AppendToOutgoingContext(t.Context(), outputKey, bad)); got != maxOutput {
			t.Errorf("%q: got %d", bad, got)
		}
	}
}
