package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/api/client"
)

// TestAwaitStart waits for a container of a pod that goes, ends, or never begins. Nothing of it may be waited for for
// ever.
func TestAwaitStart(t *testing.T) {
	pod := web()
	with := func(phase corev1.PodPhase, state corev1.ContainerState) *corev1.Pod {
		p := pod.DeepCopy()
		p.Status.Phase = phase
		p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debugger", State: state}}
		return p
	}
	other := pod.DeepCopy()
	other.UID = "another"
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	type event struct {
		Type   string
		Object *corev1.Pod
	}
	pulling := waits("ErrImagePull", "no such registry")
	for name, c := range map[string]struct {
		there  *corev1.Pod // when the watch has begun; nil: none
		events []event
		err    string
		notes  string
	}{
		"gone before the watch":     {nil, nil, "pod web-node has gone before container debugger was started", ""},
		"replaced before the watch": {other, []event{{"ADDED", other}}, "pod web-node has gone", ""},
		"goes": {
			&pod,
			[]event{
				{"ADDED", with("Running", pulling)},
				{"MODIFIED", with("Running", pulling)},
				{"DELETED", with("Running", pulling)},
			},
			"pod web-node has gone", "Waiting for container debugger: ErrImagePull: no such registry\n",
		},
		"ends": {
			&pod,
			[]event{{"ADDED", &pod}, {"MODIFIED", with("Failed", pulling)}},
			"pod web-node has ended (Failed)", "",
		},
		"never can": {
			&pod,
			[]event{{"ADDED", with("Running", waits("InvalidImageName", "bad"))}},
			"never started: InvalidImageName: bad", "",
		},
		"starts": {&pod, []event{{
			"ADDED",
			with("Running", corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}),
		}}, "", ""},
		"has " +
			"run": {&pod, []event{{
			"ADDED",
			with("Succeeded", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}),
		}}, "", ""},
		"agent goes": {&pod, []event{{"ADDED", &pod}}, "ended the connection", ""},
		"of other " +
			"pods": {&pod, []event{
			{"ADDED", other},
			{"DELETED", other},
			{"ADDED", with("Running", corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})},
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mux := http.NewServeMux()
			mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				for _, e := range c.events {
					_ = json.NewEncoder(w).Encode(map[string]any{"type": e.Type, "object": e.Object})
				}
				if c.events == nil || c.there == other {
					<-r.Context().Done() // nothing ever happens to it
				}
			})
			mux.HandleFunc("GET /pods/{ns}/{pod}", func(w http.ResponseWriter, _ *http.Request) {
				if c.there == nil {
					w.WriteHeader(http.StatusNotFound)
					_ = json.NewEncoder(w).Encode(metav1.Status{
						Status: metav1.StatusFailure, Message: "no such pod",
						Code: http.StatusNotFound,
					})
					return
				}
				_ = json.NewEncoder(w).Encode(c.there)
			})
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "berth.sock"))
			if err != nil {
				t.Fatal(err)
			}
			srv := httptest.NewUnstartedServer(mux)
			srv.Listener = l
			srv.Start()
			defer srv.Close()
			var notes bytes.Buffer
			_, err = awaitStart(t.Context(), client.New(dir), &pod, "debugger", &notes)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
				notes.String() != c.notes {
				t.Errorf("%v, said %q; want %q and %q", err, notes.String(), c.err, c.notes)
			}
		})
	}
}

func TestCustomOfACostlyQuantity(t *testing.T) {
	file := filepath.Join(t.TempDir(), "custom.yaml")
	if err := os.WriteFile(file, []byte("resources: {limits: {cpu: '1e-999999999'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &debugOptions{profile: "general", image: "busybox", custom: file}
	if c, err := o.build(nil); err == nil || !strings.Contains(err.Error(), "resources.limits[cpu]: Invalid value") {
		t.Errorf("%+v, %v", c, err)
	}
}
