package etcd

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestEndIsNoFault wants no word of what a member closes itself as it ends, and all of what else fails.
func TestEndIsNoFault(t *testing.T) {
	var out strings.Builder
	log := newZap(slog.New(slog.NewTextHandler(&out, nil)))
	for _, text := range []string{"mux: server closed", "http: Server closed", "accept unix /x: use of closed network connection"} {
		log.Error("setting up serving from embedded etcd failed.", zap.Error(errors.New(text)))
		log.Warn("stopped insecure grpc server due to error", zap.Error(errors.New(text)))
	}
	if out.Len() > 0 {
		t.Errorf("told of its own end:\n%s", out.String())
	}
	log.Error("x", zap.Error(errors.New("bind: address already in use")))
	log.Error("y")
	if got := strings.Count(out.String(), "level=ERROR"); got != 2 {
		t.Errorf("%d faults are told:\n%s", got, out.String())
	}
}
