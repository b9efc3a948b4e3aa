package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestKeeperKilledWhileFrozen kills a keeper that has frozen a container for the start of another one, before and after
// the server has ended: what it has left is not frozen for ever, but goes with the pod.
func TestKeeperKilledWhileFrozen(t *testing.T) {
	for _, up := range []bool{true, false} {
		t.Run(fmt.Sprintf("server up %v", up), func(t *testing.T) {
			n := newNode(t)
			specs := t.TempDir()
			gate := filepath.Join(specs, "gate")
			if err := unix.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			hook := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "berth.test/gate", "devices": [{"name": "one", "containerEdits": {"hooks": [
				{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", "read x < %s"]}]}}]}`, gate)
			if err := os.WriteFile(filepath.Join(specs, "gate.json"), []byte(hook), 0o600); err != nil {
				t.Fatal(err)
			}
			n.core.host.CDI.Dirs = []string{specs}
			r, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.sharing("a", false)})
			if err != nil {
				t.Fatal(err)
			}
			pod := r.PodSandboxId
			shared := func(cfg *runtimeapi.ContainerConfig) {
				securityOf(cfg).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
			}
			looker := n.run(t, pod, "looker", func(cfg *runtimeapi.ContainerConfig) {
				shared(cfg)
				securityOf(cfg).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_PTRACE"}}
			}, "sleep", "1000")
			first := n.initPid(t, looker)
			next, err := n.tryCreate(pod, "next", func(cfg *runtimeapi.ContainerConfig) {
				shared(cfg)
				cfg.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/gate=one"}}
			}, "sleep", "1000")
			if err != nil {
				t.Fatal(err)
			}
			c, err := n.core.ctrs.Table.ByID.Get(looker)
			if err != nil {
				t.Fatal(err)
			}
			dir, k := n.core.host.Cgroups.FreezerDir(c.Record().Cgroup), n.keeperPid(t, pod)
			started := make(chan error, 1)
			go func() {
				_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: next})
				started <- err
			}()
			eventually(t, func() bool {
				for name, on := range map[string]string{"freezer.state": "FROZEN\n", "cgroup.freeze": "1\n"} {
					if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
						return string(b) == on
					}
				}
				return false
			})
			sendSignal(t, k, unix.SIGKILL)
			if err := <-started; err == nil {
				t.Error("it is said to be started")
			}
			if !up {
				if err := n.Close(); err != nil {
					t.Fatal(err)
				}
				n.open(t)
			}
			eventually(t, func() bool { return statusOf(t, n.Server, looker).State == runtimeapi.ContainerState_CONTAINER_EXITED })
			eventually(t, func() bool { return unix.Kill(first, 0) == unix.ESRCH })
			if err := removePod(t, n.Server, pod); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the group is left: %v", err)
			}
		})
	}
}
