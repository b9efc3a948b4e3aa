package main

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

func TestIdle(t *testing.T) {
	for used, want := range map[time.Duration]bool{0: true, 2 * time.Second: true, 15 * time.Second: false, time.Minute: false} {
		if idle(used, 5*time.Minute) != want {
			t.Errorf("%s within five minutes: %v", used, !want)
		}
	}
	before := processorTime()
	for processorTime() == before { // the kernel counts as it likes
		_ = make([]byte, 1<<20)
	}
}

// TestSettleEnds has it end with the server, whether that has begun or not.
func TestSettleEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	log := slog.New(slog.DiscardHandler)
	settle(ctx, nil, newPace(testMemory, func() {}), log)
	began := make(chan struct{})
	close(began)
	settle(ctx, began, newPace(testMemory, func() {}), log)
}
