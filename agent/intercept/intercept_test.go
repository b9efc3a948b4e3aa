package intercept

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// none is a runtime that must not be reached.
type none struct{ pod.Runtime }

var errRefused = errors.New("refused")

// TestEveryCall makes every call that a runtime has: each goes through the interceptor, with its request and a name of
// its own.
func TestEveryCall(t *testing.T) {
	var calls []Call
	r := Runtime(none{}, func(_ context.Context, c Call, _ func() error) error {
		calls = append(calls, c)
		return errRefused
	})
	v, names := reflect.ValueOf(r), map[string]bool{}
	methods := reflect.TypeFor[pod.Runtime]()
	for m := range methods.Methods() {
		if m.Name == "Events" {
			continue // it is no call
		}
		before := len(calls)
		req := reflect.New(m.Type.In(1).Elem())
		out := v.MethodByName(m.Name).Call([]reflect.Value{reflect.ValueOf(t.Context()), req})
		if err, _ := reflect.TypeAssert[error](out[1]); !errors.Is(err, errRefused) || len(calls) != before+1 {
			t.Fatalf("%s: %v after %d calls", m.Name, err, len(calls)-before)
		}
		if c := calls[before]; c.Request != req.Interface() || names[c.Operation] || c.Operation == "" {
			t.Errorf("%s: %+v", m.Name, c)
		}
		names[calls[before].Operation] = true
	}
	for name := range quiet {
		if !names[name] {
			t.Errorf("%s is no call", name)
		}
	}
}

// starts is a runtime that creates containers and knows no sandboxes.
type starts struct{ pod.Runtime }

func (starts) CreateContainer(context.Context, *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return &runtimeapi.CreateContainerResponse{ContainerId: "c1"}, nil
}

func (starts) RemovePodSandbox(context.Context, *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return nil, errors.New("not there")
}

func (starts) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

// TestLog tells of what changes something, by the fields that all logs have, and of nothing at a higher level.
func TestLog(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: level}))
		outer := 0
		r := Runtime(starts{}, func(_ context.Context, _ Call, do func() error) error { outer++; return do() }, Log(log, "runtime was called"))
		created, err := r.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  "s1",
			Config:        &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "web"}},
			SandboxConfig: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: "a", Uid: "u1"}},
		})
		if err != nil || created.GetContainerId() != "c1" {
			t.Fatalf("%v, %v", created, err)
		}
		if _, err := r.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "s1"}); err == nil {
			t.Error("the error is lost")
		}
		if _, err := r.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || outer != 3 {
			t.Errorf("%v, %d calls", err, outer)
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if level == slog.LevelInfo {
			if said.Len() != 0 {
				t.Errorf("told at level info: %s", said.String())
			}
			continue
		}
		if len(lines) != 2 {
			t.Fatalf("%q", lines)
		}
		for i, wants := range [][]string{
			{"pod=default/a", "uid=u1", "container=web", "sandbox=s1", "operation=create_container", "took="},
			{"sandbox=s1", "operation=remove_podsandbox", `error="not there"`},
		} {
			for _, want := range wants {
				if !strings.Contains(lines[i], want) {
					t.Errorf("no %s in %s", want, lines[i])
				}
			}
		}
	}
}

// TestCgroups: the interceptor hears of a pod's group being made, and the path comes through.
func TestCgroups(t *testing.T) {
	var calls []Call
	g := Cgroups(made{}, func(_ context.Context, c Call, do func() error) error { calls = append(calls, c); return do() })
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}}
	if path, err := g.EnsurePod(p); err != nil || path != "/pods/u1" || len(calls) != 1 || calls[0].Pod != p || calls[0].Operation != "create" {
		t.Errorf("%s, %v: %+v", path, err, calls)
	}
}

type made struct{ pod.Cgroups }

func (made) EnsurePod(p *corev1.Pod) (string, error) { return "/pods/" + string(p.UID), nil }
