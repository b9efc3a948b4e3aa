package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCheckpoint: who wants one is told what is missing for it, one after the other.
func TestCheckpoint(t *testing.T) {
	s := closing(t, fakeServer(t, newWorld(), t.TempDir()))
	id := createContainer(t, s, runPod(t, s, "a"), "c")
	dir := t.TempDir()
	to := func(id, location string) error {
		_, err := s.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location})
		return err
	}
	checkpoint := func(id string) error { return to(id, filepath.Join(dir, "c.tar")) }
	if err := checkpoint("nobody"); status.Code(err) != codes.NotFound {
		t.Errorf("of one that is not: got %v", err)
	}
	if err := checkpoint(id); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("of one that does not run: got %v", err)
	}
	startContainer(t, s, id)
	for location, want := range map[string]codes.Code{
		"": codes.InvalidArgument, "c.tar": codes.InvalidArgument, filepath.Join(dir, "none/c.tar"): codes.InvalidArgument, dir: codes.AlreadyExists,
	} {
		if err := to(id, location); status.Code(err) != want {
			t.Errorf("to %q: got %v, want %v", location, err, want)
		}
	}
	path := t.TempDir()
	t.Setenv("PATH", path)
	for _, tt := range []struct{ criu, want string }{
		{"", "package criu"},
		{"#!/bin/sh\necho some lines\necho no ptrace\nexit 1\n", "CONFIG_CHECKPOINT_RESTORE and more (criu check: exit status 1): no ptrace"},
	} {
		if tt.criu != "" {
			if err := os.WriteFile(filepath.Join(path, "criu"), []byte(tt.criu), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := checkpoint(id); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}
