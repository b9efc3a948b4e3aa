package environment

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mute is a runtime that does not answer while something lives, as CRI-O does that cannot kill.
type mute struct {
	*world
	killed bool
	immune bool // nothing is ended by being killed
}

func (m *mute) wait(ctx context.Context, name string) error {
	if err := m.call(name); m.killed {
		return err
	}
	<-ctx.Done()
	return grpcstatus.FromContextError(ctx.Err()).Err()
}

func (m *mute) StopPodSandbox(ctx context.Context, _ *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return nil, m.wait(ctx, "stop sandbox")
}

func (m *mute) RemovePodSandbox(ctx context.Context, _ *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return nil, m.wait(ctx, "remove sandbox")
}

func (m *mute) StopContainer(ctx context.Context, _ *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return nil, m.wait(ctx, "stop container")
}

func (m *mute) RemoveContainer(ctx context.Context, _ *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return nil, m.wait(ctx, "remove container")
}

func (m *mute) KillIn(context.Context, types.UID, []string) error {
	m.killed = !m.immune
	return m.call("kill")
}

// TestMuteRuntime: a runtime that does not answer is not waited for without end: what lives is killed once the time is
// over, and the runtime asked again.
func TestMuteRuntime(t *testing.T) {
	for name, ask := range map[string]struct {
		of    func(Remover, context.Context) error
		after time.Duration
		calls []string
	}{
		"stop container": {
			func(r Remover, ctx context.Context) error { return r.StopContainer(ctx, "u", "c", 30) },
			30*time.Second + patience,
			[]string{"stop container", "kill", "stop container"},
		},
		"remove container": {
			func(r Remover, ctx context.Context) error { return r.RemoveContainer(ctx, "u", "c") },
			patience,
			[]string{"remove container", "kill", "remove container"},
		},
		"stop sandbox": {
			func(r Remover, ctx context.Context) error { return r.StopSandbox(ctx, "u", "s") },
			stopPatience,
			[]string{"stop sandbox", "list containers of s", "kill", "stop sandbox"},
		},
		"remove sandbox": {
			func(r Remover, ctx context.Context) error { return r.RemoveSandbox(ctx, "u", "s") },
			patience,
			[]string{"remove sandbox", "list containers of s", "kill", "remove sandbox"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &mute{world: &world{}}
			began := time.Now()
			if err := ask.of(Remover{m, m}, t.Context()); err != nil || time.Since(began) != ask.after {
				t.Errorf("%s: %v after %s", name, err, time.Since(began))
			}
			if calls := m.take(); !slices.Equal(calls, ask.calls) {
				t.Errorf("%s: %q", name, calls)
			}
			m = &mute{world: &world{}, immune: true}
			began = time.Now()
			if err := ask.of(Remover{m, m}, t.Context()); grpcstatus.Code(err) != codes.DeadlineExceeded || time.Since(began) != 2*ask.after {
				t.Errorf("%s of what does not die: %v after %s", name, err, time.Since(began))
			}
			// Who does not want it any more has nothing killed.
			m = &mute{world: &world{}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := ask.of(Remover{m, m}, ctx); err == nil || m.killed {
				t.Errorf("%s that is given up: %v, killed: %t", name, err, m.killed)
			}
		})
	}
}
