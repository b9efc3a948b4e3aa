package environment

import (
	"context"
	"slices"
	"sync/atomic"
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
	killed atomic.Bool
	immune bool // nothing is ended by being killed
	lost   bool // what it was asked before the kill is never answered
	died   chan struct{}
}

func newMute() *mute { return &mute{world: &world{}, died: make(chan struct{})} }

func (m *mute) wait(ctx context.Context, name string) error {
	if err := m.call(name); m.killed.Load() {
		return err
	}
	select {
	case <-m.died:
		return nil
	case <-ctx.Done():
	}
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
	m.killed.Store(!m.immune)
	if !m.immune && !m.lost && !m.dead() {
		close(m.died)
	}
	return m.call("kill")
}

func (m *mute) dead() bool {
	select {
	case <-m.died:
		return true
	default:
		return false
	}
}

// TestMuteRuntime: a runtime that does not answer is not waited for without end: what lives is killed soon after it was
// to have ended, and the runtime asked again when it has not answered by the end of its time.
func TestMuteRuntime(t *testing.T) {
	for name, ask := range map[string]struct {
		of           func(Remover, context.Context) error
		grace, limit time.Duration
		kill         []string
	}{
		"stop container": {
			func(r Remover, ctx context.Context) error { return r.StopContainer(ctx, "u", "c", 30) },
			30 * time.Second, patience,
			[]string{"kill"},
		},
		"remove container": {
			func(r Remover, ctx context.Context) error { return r.RemoveContainer(ctx, "u", "c") },
			0, patience,
			[]string{"kill"},
		},
		"stop sandbox": {
			func(r Remover, ctx context.Context) error { return r.StopSandbox(ctx, "u", "s") },
			0, stopPatience,
			[]string{"list containers of s", "kill"},
		},
		"remove sandbox": {
			func(r Remover, ctx context.Context) error { return r.RemoveSandbox(ctx, "u", "s") },
			0, patience,
			[]string{"list containers of s", "kill"},
		},
	} {
		once := slices.Concat([]string{name}, ask.kill)
		twice := slices.Concat(once, ask.kill, []string{name})
		synctest.Test(t, func(t *testing.T) {
			for _, tt := range []struct {
				m     *mute
				after time.Duration
				calls []string
				code  codes.Code
			}{
				{newMute(), ask.grace + overdue, once, codes.OK},
				{&mute{world: &world{}, lost: true}, ask.grace + ask.limit, twice, codes.OK},
				{&mute{world: &world{}, immune: true}, 2 * (ask.grace + ask.limit), twice, codes.DeadlineExceeded},
			} {
				began := time.Now()
				err := ask.of(Remover{tt.m, tt.m}, t.Context())
				if grpcstatus.Code(err) != tt.code || time.Since(began) != tt.after {
					t.Errorf("%s: %v after %s", name, err, time.Since(began))
				}
				if calls := tt.m.take(); !slices.Equal(calls, tt.calls) {
					t.Errorf("%s: %q", name, calls)
				}
			}
			// Who does not want it any more has nothing killed.
			m := newMute()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := ask.of(Remover{m, m}, ctx); err == nil || m.killed.Load() {
				t.Errorf("%s that is given up: %v, killed: %t", name, err, m.killed.Load())
			}
		})
	}
}
