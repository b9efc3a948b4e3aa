package peer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EndLost kills the shims that containerd has lost: whoever speaks the CRI to it can neither find them nor end them.
//
//   - When the client of a RunPodSandbox goes, containerd 1.6 cleans up "after shim disconnected" and forgets the shim,
//     but that lives on.
//   - When the process of a sandbox ends before one of its containers, whose kill has failed, containerd 2.2 asks the
//     shim to end and forgets it. The shim does not end as long as it has a container, and nobody asks it again when
//     that is gone: of a container in a sandbox, containerd leaves that to the end of the sandbox.
func (r *Runtime) EndLost(t *testing.T) {
	t.Helper()
	shims := r.shims()
	if len(shims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := r.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return
	}
	for id, pid := range shims {
		if !slices.ContainsFunc(list.GetItems(), func(s *runtimeapi.PodSandbox) bool { return s.GetId() == id }) {
			t.Logf("%s has lost the shim of %s", r.Release, id)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// shims are the shims of the runtime, by the ID of their sandbox.
func (r *Runtime) shims() map[string]int {
	out := map[string]int{}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		b, _ := os.ReadFile(f)
		args := strings.Split(string(b), "\x00")
		at := slices.Index(args, "-id")
		if at < 0 || at+1 >= len(args) || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") ||
			!slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, r.Dir+"/") }) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			out[args[at+1]] = pid
		}
	}
	return out
}
