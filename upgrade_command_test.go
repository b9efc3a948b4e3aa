package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCommandLeavesNothing takes the time away from a command whose daemon has left it, and has not yet become what it
// is to be.
func TestCommandLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	late := filepath.Join(dir, "late")
	n := &upgradedNode{Restart: "setsid -f sh -c 'echo $$ >" + late + "; sleep 600; : it goes on' & sleep 600"}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
			if data, _ := os.ReadFile(late); strings.HasSuffix(string(data), "\n") {
				break
			}
		}
		cancel(errors.New("the time is over"))
	}()
	if err := n.command(ctx); err == nil {
		t.Error("a command that was killed succeeds")
	}
	data, err := os.ReadFile(late)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(data)))); err == nil {
		t.Error("its daemon goes on")
	}
	if left := orphans(); len(left) != 0 {
		t.Errorf("processes %d are left", left)
	}
}
