package cri

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// freezeGroup freezes a pod's sandbox group, or thaws it.
func freezeGroup(t testing.TB, group, state string) {
	t.Helper()
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	dir, file, text := h.Dir("freezer", group), "freezer.state", state
	if h.Mode() == cgroups.Unified {
		dir, file, text = h.Dir("", group), "cgroup.freeze", "0"
		if state == "FROZEN" {
			text = "1"
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// keeperPid is the keeper's, which is in its group from then on.
func (n *node) keeperPid(t testing.TB, pod string) int {
	t.Helper()
	sb, err := n.core.pods.Table.ByID.Get(pod)
	if err != nil {
		t.Fatal(err)
	}
	<-sb.Joined
	return sb.Record().Pid
}

func (n *node) initPid(t testing.TB, id string) int {
	t.Helper()
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return c.Record().Pid
}

// problem is what clients are told of a pod's trouble.
func (n *node) problem(t testing.TB, pod string) string {
	t.Helper()
	r, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	return r.Info["problem"]
}

// silences are ways to make a keeper live and not answer.
var silences = map[string]struct {
	begin func(t testing.TB, n *node, pod string, pid int)
	end   func(t testing.TB, n *node, pod string, pid int)
}{
	"stopped": {
		func(t testing.TB, _ *node, _ string, pid int) { sendSignal(t, pid, unix.SIGSTOP) },
		func(t testing.TB, _ *node, _ string, pid int) { sendSignal(t, pid, unix.SIGCONT) },
	},
	"frozen": {
		func(t testing.TB, n *node, pod string, _ int) { freezeGroup(t, n.groupOf(t, pod), "FROZEN") },
		func(t testing.TB, n *node, pod string, _ int) { freezeGroup(t, n.groupOf(t, pod), "THAWED") },
	},
	"pod frozen": {
		func(t testing.TB, n *node, pod string, _ int) {
			freezeGroup(t, filepath.Dir(n.groupOf(t, pod)), "FROZEN")
		},
		func(t testing.TB, n *node, pod string, _ int) {
			freezeGroup(t, filepath.Dir(n.groupOf(t, pod)), "THAWED")
		},
	},
}

func (n *node) groupOf(t testing.TB, pod string) string {
	t.Helper()
	sb, err := n.core.pods.Table.ByID.Get(pod)
	if err != nil {
		t.Fatal(err)
	}
	return sb.Record().Cgroup
}

func sendSignal(t testing.TB, pid int, sig unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// TestSilentKeeperAtStart starts a server while one keeper is silent: the start goes on, the pod is left as it is and
// told of, and is taken up when its keeper answers.
func TestSilentKeeperAtStart(t *testing.T) {
	for name, way := range silences {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod, _ := n.pod(t, "a", nil)
			id := n.run(t, pod, "main", nil, "sleep", "1000")
			other, _ := n.pod(t, "b", nil)
			healthy := n.run(t, other, "main", nil, "sleep", "1000")
			k, first, second := n.keeperPid(t, pod), n.initPid(t, id), n.initPid(t, healthy)
			n.keeperPid(t, other)
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			way.begin(t, n, pod, k) // the closed server still says where its group is
			n.open(t)
			if got := n.problem(t, pod); !strings.Contains(got, "does not answer") {
				t.Errorf("problem is %q", got)
			}
			if got := n.problem(t, other); got != "" {
				t.Errorf("the other's problem is %q", got)
			}
			if podState(t, n.Server, pod) != runtimeapi.PodSandboxState_SANDBOX_READY || statusOf(t, n.Server, id).State != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Error("the pod is not what it was")
			}
			if got := n.sh(t, healthy, "echo ok"); got != "ok" {
				t.Errorf("got %q", got)
			}
			if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}}); err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("exec: %v", err)
			}
			way.end(t, n, pod, k)
			eventually(t, func() bool { return n.problem(t, pod) == "" })
			if got := n.sh(t, id, "echo ok"); got != "ok" {
				t.Errorf("got %q", got)
			}
			if n.keeperPid(t, pod) != k || n.initPid(t, id) != first || n.initPid(t, healthy) != second {
				t.Error("processes are others")
			}
			// Its exits are heard of again.
			sendSignal(t, first, unix.SIGKILL)
			eventually(t, func() bool { return statusOf(t, n.Server, id).State == runtimeapi.ContainerState_CONTAINER_EXITED })
			if err := removePod(t, n.Server, pod); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEndOfSilentPods ends pods whose keepers do not answer, one by stopping its container first, one by the removal of
// all.
func TestEndOfSilentPods(t *testing.T) {
	for name, way := range silences {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var pods, ids []string
			for _, name := range []string{"a", "b", "c"} {
				pod, _ := n.pod(t, name, func(cfg *runtimeapi.PodSandboxConfig) {
					if name == "b" {
						cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
					}
				})
				pods = append(pods, pod)
				ids = append(ids, n.run(t, pod, "main", nil, "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done"))
			}
			for _, pod := range pods {
				way.begin(t, n, pod, n.keeperPid(t, pod))
			}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.open(t)
			if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ids[0], Timeout: 1}); err != nil {
				t.Error(err)
			}
			if st := statusOf(t, n.Server, ids[0]); st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
				t.Errorf("it is %v", st.State)
			}
			for _, pod := range pods[:2] {
				if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
					t.Error(err)
				}
				if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
					t.Error(err)
				}
			}
			// The last is left to the purge.
		})
	}
}

// TestSilentWhileUp has a keeper fall silent under a server that runs, in the middle of a start.
func TestSilentWhileUp(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	k := n.keeperPid(t, pod)
	next, err := n.tryCreate(pod, "next", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	sendSignal(t, k, unix.SIGSTOP)
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: next}); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("start: %v", err)
	}
	if got := n.problem(t, pod); !strings.Contains(got, "does not answer") {
		t.Errorf("problem is %q", got)
	}
	sendSignal(t, k, unix.SIGCONT)
	eventually(t, func() bool { return n.problem(t, pod) == "" })
	// Who wanted the start was told that it has failed, and so it has.
	eventually(t, func() bool { return statusOf(t, n.Server, next).State == runtimeapi.ContainerState_CONTAINER_EXITED })
	if got := n.sh(t, id, "echo ok"); got != "ok" {
		t.Errorf("got %q", got)
	}
}

// TestSilentAboutStart has an agent killed in the middle of a start, and the next one meet a keeper that does not say
// what became of it, as on a machine that is busy. The container may run: it is none that has never been started, which
// is ended without its hook.
func TestSilentAboutStart(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	k := n.keeperPid(t, pod)
	id, err := n.tryCreate(pod, "main", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if got := statusOf(t, n.Server, id).State; got != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("before its start it is %v", got)
	}
	sendSignal(t, k, unix.SIGSTOP)
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("it was started by a keeper that is stopped")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if st := statusOf(t, n.Server, id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt != st.CreatedAt {
		t.Errorf("it is %v since %d", st.State, st.StartedAt)
	}
	hook := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"echo", "hook"}}
	if _, err := n.ExecSync(t.Context(), hook); status.Code(err) != codes.Unavailable {
		t.Errorf("exec: %v", err)
	}
	sendSignal(t, k, unix.SIGCONT)
	eventually(t, func() bool { return n.problem(t, pod) == "" })
	r, err := n.ExecSync(t.Context(), hook)
	if err != nil || string(r.GetStdout()) != "hook\n" {
		t.Errorf("exec: %v, %v", r, err)
	}
	if err := removePod(t, n.Server, pod); err != nil {
		t.Error(err)
	}
}

// TestNoDescriptorsForKeepers starts a server that cannot open enough files to watch its keepers. No pod ends for that.
func TestNoDescriptorsForKeepers(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	first := n.initPid(t, id)
	sb, err := n.core.pods.Table.ByID.Get(pod)
	if err != nil {
		t.Fatal(err)
	}
	<-sb.Joined
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	low := had
	low.Cur = 1
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	// The watch is cut, and what follows finds no descriptor.
	n.core.pods.Watcher.Suspect(sb, unix.EMFILE)
	rec := podState(t, n.Server, pod)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	if rec != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Error("the pod has ended")
	}
	eventually(t, func() bool { return n.problem(t, pod) == "" })
	if n.initPid(t, id) != first || n.sh(t, id, "echo ok") != "ok" {
		t.Error("it is another")
	}
}

// TestDamagedKeeperRecords damages every file of one pod's keeper, one after the other, while no server runs. The pod
// goes on, or is told of, and others are left alone; at last everything can be removed.
func TestDamagedKeeperRecords(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	n.output(t, pod, "ended", nil, "true")
	first, k := n.initPid(t, id), n.keeperPid(t, pod)
	dir := n.core.host.Paths.Sandbox(pod).Keeper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		whole, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string][]byte{"empty": nil, "halved": whole[:len(whole)/2], "flipped": flip(whole)} {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f, text, 0o600); err != nil {
				t.Fatal(err)
			}
			n.open(t)
			if podState(t, n.Server, pod) != runtimeapi.PodSandboxState_SANDBOX_READY || n.initPid(t, id) != first || n.keeperPid(t, pod) != k {
				t.Errorf("%s %s: the pod is not what it was", filepath.Base(f), what)
			}
			if got := n.sh(t, id, "echo ok"); got != "ok" {
				t.Errorf("%s %s: got %q", filepath.Base(f), what, got)
			}
			if err := os.WriteFile(f, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("?"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removePod(t, n.Server, pod); err != nil {
		t.Error(err)
	}
}

// flip turns every bit.
func flip(b []byte) []byte {
	out := slices.Clone(b)
	for i := range out {
		out[i] ^= 0xff
	}
	if bytes.Equal(out, b) {
		return []byte{0xff}
	}
	return out
}
