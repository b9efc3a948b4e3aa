package csi

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// TestFlapping: a driver that answers whoever connects, and then closes, is not connected to again and again at once.
func TestFlapping(t *testing.T) {
	f := newFake(t, example)
	f.options = []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Millisecond})}
	f.start()
	d := newDrivers(t)
	events := make(chan time.Time, 1000)
	t.Cleanup(d.Subscribe(func(e Event) {
		if !e.Here {
			select {
			case events <- time.Now():
			default:
			}
		}
	}))
	must(t, d.Register(t.Context(), f.registration()))
	first, last, least := <-events, time.Time{}, time.Duration(0)
	for delay := paceMin; delay < 300*time.Millisecond; delay *= 2 {
		last = <-events
		least += delay / 2 // the machine may have kept one of them waiting
	}
	if took := last.Sub(first); took < least {
		t.Errorf("it was lost again and again within %v", took)
	}
}
