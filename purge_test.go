package main

import (
	"context"
	"os"
	"strings"
	"testing"
)

// TestAgreed: only yes is yes, and who interrupts the command is not waited for.
func TestAgreed(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, " YES \n": true, "n\n": false, "\n": false, "": false, "y": false} {
		if got := agreed(t.Context(), strings.NewReader(answer)); got != want {
			t.Errorf("%q: %t", answer, got)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if agreed(ctx, r) {
		t.Error("who interrupts it agrees")
	}
}
