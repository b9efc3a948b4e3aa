package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEmptyHears: that the last pod is gone is heard of by the watch of an agent that comes later, and that nothing is
// left of it by the directory of sandboxes.
func TestEmptyHears(t *testing.T) {
	runDir := t.TempDir()
	sandboxes := filepath.Join(runDir, "sandboxes")
	watching, gone, listed := make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		one := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "last", Namespace: "default"}}
		tell := json.NewEncoder(w)
		if r.URL.Query().Get("watch") == "" {
			list := corev1.PodList{Items: []corev1.Pod{one}}
			select {
			case <-gone:
				list.Items = nil
				ring(listed)
			default:
			}
			_ = tell.Encode(list)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		ring(watching)
		select {
		case <-gone:
			_ = tell.Encode(map[string]any{"type": "DELETED", "object": one})
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
		}
		<-r.Context().Done()
	})
	u := uninstalling{out: io.Discard}
	done := make(chan error, 1)
	go func() { done <- u.empty(t.Context(), runDir, nil) }()

	// The agent comes: its socket gets its name when it is served.
	l, err := net.Listen("unix", filepath.Join(runDir, "new"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	if err := errors.Join(os.MkdirAll(filepath.Join(sandboxes, "one"), 0o700), os.Rename(filepath.Join(runDir, "new"),
		filepath.Join(runDir, "berth.sock"))); err != nil {
		t.Fatal(err)
	}
	<-watching
	close(gone)
	<-listed // the watch has told
	select {
	case err := <-done:
		t.Fatalf("it is empty while a sandbox is left: %v", err)
	default:
	}
	if err := os.Remove(filepath.Join(sandboxes, "one")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEmptyGivesUp: an agent that ends before its pods do ends the wait.
func TestEmptyGivesUp(t *testing.T) {
	u := uninstalling{out: io.Discard}
	ended := make(chan error)
	close(ended)
	if err := u.empty(t.Context(), t.TempDir(), ended); err == nil {
		t.Error("pods that nobody ends are waited for")
	}
}

// TestStopUnit: a unit whose file is gone is stopped where it runs, and keeps nobody from going on where it does not.
func TestStopUnit(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	// As systemd does of a unit without a file that no link names.
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\ncase \"$1 $STATE\" in show*) echo $STATE;; disable*not-found*) exit 1;; esac\n", calls)
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for state, want := range map[string]string{
		"LoadState=loaded ActiveState=active":      "disable --now x.service",
		"LoadState=loaded ActiveState=inactive":    "disable --now x.service",
		"LoadState=not-found ActiveState=active":   "stop x.service",
		"LoadState=not-found ActiveState=inactive": "disable x.service",
	} {
		t.Setenv("STATE", state)
		if err := stopUnit(t.Context(), "x.service"); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		said, _ := os.ReadFile(calls)
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		if last := lines[len(lines)-1]; last != want {
			t.Errorf("%s: the last of %q should be %q", state, lines, want)
		}
	}
}
