package handler

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// script is a runtime for tests.
func script(t *testing.T, text string) *OCI {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return &OCI{Path: path, Root: t.TempDir()}
}

func emptySet() *Set { return &Set{byName: map[string]Handler{}, asked: map[string]*answers{}} }

// TestSlowRuntime has a runtime that does not answer. Neither others nor who has given up wait for it.
func TestSlowRuntime(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "asked")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	slow, quick := script(t, "echo > "+pipe+"; exec sleep 1000"), script(t, `echo '{"mountOptions":["rro"]}'`)
	s := emptySet()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		s.Features(ctx, Caller{}, slow)
	}()
	if _, err := os.ReadFile(pipe); err != nil { // it is being asked
		t.Fatal(err)
	}
	gone, end := context.WithDeadline(t.Context(), time.Now())
	defer end()
	if s.NeedsCgroupV1(gone, slow) || s.Features(gone, Caller{}, slow) != (Features{}) {
		t.Error("there is an answer")
	}
	if !s.Features(t.Context(), Caller{}, quick).RecursiveReadOnly {
		t.Error("another runtime has no answer")
	}
	select {
	case <-asked:
		t.Error("others have waited for the runtime that does not answer")
	default:
	}
	cancel()
	<-asked
}

// TestOutputIsBounded has a runtime write more than anybody reads, and in the end why it has failed.
func TestOutputIsBounded(t *testing.T) {
	r := script(t, `for last; do :; done
yes out | head -c 5000000; yes err | head -c 5000000 >&2; echo 'the reason' >&2; test "$last" = good
`)
	out, err := Caller{}.exec(t.Context(), r, nil, "state", "good")
	if err != nil || len(out) != maxSaid {
		t.Errorf("it has said %d bytes, %v", len(out), err)
	}
	if _, err := (Caller{}).exec(t.Context(), r, nil, "state", "bad"); err == nil || !strings.Contains(err.Error(), "the reason") || len(err.Error()) > 1000 {
		t.Errorf("error is %v", err)
	}
}
