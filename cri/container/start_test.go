package container

import (
	"testing"

	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/stdio"
	"google.golang.org/grpc/metadata"
)

func TestExitReasons(t *testing.T) {
	for _, tt := range []struct {
		exit   keeper.Exit
		reason string
	}{
		{keeper.Exit{Code: 0}, "Completed"}, {keeper.Exit{Code: 1}, "Error"}, {keeper.Exit{Code: 137, Signal: 9, OOMKilled: true}, "OOMKilled"},
	} {
		if got := outcomeOf(tt.exit); got.reason != tt.reason || int(got.code) != tt.exit.Code {
			t.Errorf("%+v: got %+v", tt.exit, got)
		}
	}
}

// TestBadWantedOutput: what is no number is as if nothing was said.
func TestBadWantedOutput(t *testing.T) {
	for _, bad := range []string{"", "x", "-1", "99999999999", "1 "} {
		if got := wantedOutput(metadata.AppendToOutgoingContext(t.Context(), OutputKey, bad)); got != stdio.MaxOutput {
			t.Errorf("%q: got %d", bad, got)
		}
	}
}
