package stdio

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAnswerOfExecSyncFitsAMessage(t *testing.T) {
	const message = 16 << 20 // what kubelet and crictl take
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{10, 20, 10, 20},
		{MaxOutput, 0, MaxOutput, 0},
		{MaxOutput, 7, MaxOutput - 7, 7},
		{7, MaxOutput, 7, MaxOutput - 7},
		{MaxOutput, MaxOutput, MaxOutput / 2, MaxOutput / 2},
		{MaxOutput/2 + 1, MaxOutput/2 + 1, MaxOutput / 2, MaxOutput / 2},
	} {
		out, errOut := Fit(make([]byte, c.out), make([]byte, c.err))
		if len(out) != c.wantOut || len(errOut) != c.wantErr {
			t.Errorf("%d and %d bytes: got %d and %d, want %d and %d", c.out, c.err, len(out), len(errOut), c.wantOut, c.wantErr)
		}
		if n := proto.Size(&runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: -1}); n > message {
			t.Errorf("%d and %d bytes: the answer has %d", c.out, c.err, n)
		}
	}
}
