package systemd

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestConnectToSilent: of a systemd that has crashed the socket is there, and nobody accepts at it.
func TestConnectToSilent(t *testing.T) {
	listen(t)
	s := &Driver{calls: make(chan struct{}, maxCalls)}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	called := errors.New("it is called")
	err := s.do(ctx, func(context.Context, *connection) error { return called })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is %v", err)
	}
	if len(s.calls) != 0 || s.conn != nil {
		t.Errorf("%d calls are under way, and the connection is %v", len(s.calls), s.conn)
	}
}
