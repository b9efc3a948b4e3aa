package etcd

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestStrangers tells of each member of another cluster once, however often etcd does, and of so many at most.
func TestStrangers(t *testing.T) {
	var out strings.Builder
	s := &strangers{}
	log := newZapOf(slog.New(slog.NewTextHandler(&out, nil)), s)
	for range 5 {
		log.Warn("request "+mismatch, zap.String("remote-peer-server-name", "a"), zap.String("remote-peer-cluster-id", "c"))
		log.Error("request sent was ignored due to "+mismatch, zap.String("remote-peer-id", "b"))
		log.Warn("x", zap.String("remote-peer-id", "b"), zap.String("error", mismatch))
	}
	if n := strings.Count(out.String(), "level="); n != 2 || strings.Contains(out.String(), mismatch) {
		t.Errorf("it is told of %d times:\n%s", n, out.String())
	}
	for i := range 2 * maxStrangers {
		if _, first := s.hear(map[string]any{"remote-peer-id": fmt.Sprint(i)}); first != (i < maxStrangers-2) {
			t.Errorf("%d is told of: %t", i, first)
		}
	}
	if now := s.now(); len(now) != maxStrangers {
		t.Errorf("%d are known: %q", len(now), now)
	}
}
