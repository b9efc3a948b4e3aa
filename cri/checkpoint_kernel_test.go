package cri

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/checkpoint"
)

// readTar returns the files of an archive by their names.
func readTar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
	}
}

// counting says that the container goes on.
func (n *node) counting(t *testing.T, id string) {
	t.Helper()
	count := func() int {
		i, _ := strconv.Atoi(n.sh(t, id, "cat /data/count"))
		return i
	}
	was := count()
	eventually(t, func() bool { return count() > was })
}

const counter = "echo changed > /data/new; busybox rm /data/file; i=0; while :; do i=$((i+1)); echo $i > /data/next; busybox mv /data/next /data/count; sleep 0.1; done"

// TestCheckpointOnTheRealKernel: the archive has all that restoring takes, and the container does not notice.
func TestCheckpointOnTheRealKernel(t *testing.T) {
	if _, err := checkpoint.FindCRIU(t.Context()); err != nil {
		t.Skip(err)
	}
	n := newNode(t)
	handlers := []string{""}
	for _, h := range n.core.host.Runtimes.Handlers.All() {
		if h.Name == "runc" {
			handlers = append(handlers, h.Name)
		}
	}
	for _, handler := range handlers {
		t.Run("handler "+handler, func(t *testing.T) { n.checkpoints(t, handler) })
		t.Run("given up, handler "+handler, func(t *testing.T) { n.checkpointGivenUp(t, handler) })
	}
}

func (n *node) checkpoints(t *testing.T, handler string) {
	pod, _ := n.podOf(t, handler, "a"+handler, nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: t.TempDir()}}
	}, "sh", "-c", counter)
	eventually(t, func() bool { return n.sh(t, id, "cat /data/count || true") != "" })
	location := filepath.Join(t.TempDir(), "c.tar")
	request := &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location}
	if _, err := n.CheckpointContainer(context.Background(), request); err != nil {
		t.Fatal(err)
	}
	n.counting(t, id)
	if ctl, err := exec.LookPath("checkpointctl"); err == nil {
		if out, err := exec.Command(ctl, "show", location).CombinedOutput(); err != nil || !strings.Contains(string(out), boxImage) {
			t.Errorf("checkpointctl: %v: %s", err, out)
		} else {
			t.Logf("%s", out)
		}
	}
	f, err := os.Open(location)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := readTar(t, f)
	for _, name := range []string{"checkpoint/inventory.img", "checkpoint/pages-1.img", "checkpoint/descriptors.json", "stats-dump", "dump.log", "container.log"} {
		if _, ok := files[name]; !ok {
			t.Errorf("the archive has no %s", name)
		}
	}
	var config checkpoint.Config
	if err := json.Unmarshal([]byte(files["config.dump"]), &config); err != nil || config.ID != id || config.Name != "main" || config.RootfsImageName != boxImage {
		t.Errorf("config.dump: got %+v, %v", config, err)
	}
	for _, name := range []string{"spec.dump", "status.dump", "status"} {
		if !json.Valid([]byte(files[name])) {
			t.Errorf("%s: got %q", name, files[name])
		}
	}
	if files["deleted.files"] != `["/data/file"]` {
		t.Errorf("deleted.files: got %q", files["deleted.files"])
	}
	diff := readTar(t, strings.NewReader(files["rootfs-diff.tar"]))
	if _, ok := diff["bin/busybox"]; ok || diff["data/new"] != "changed\n" || diff["data/count"] == "" {
		t.Errorf("rootfs-diff.tar: got %q", diff)
	}
	if _, err := n.CheckpointContainer(context.Background(), request); status.Code(err) != codes.AlreadyExists {
		t.Errorf("where one is: got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(n.cfg.RootDir, "checkpoints/*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestCheckpointKinds dumps what is not like most containers.
func TestCheckpointKinds(t *testing.T) {
	if _, err := checkpoint.FindCRIU(t.Context()); err != nil {
		t.Skip(err)
	}
	n := newNode(t)
	shared := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	for name, tt := range map[string]struct {
		pod       func(*runtimeapi.PodSandboxConfig)
		container func(*runtimeapi.ContainerConfig)
		cmd       string
	}{
		"shared-processes": {
			func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions = shared },
			func(c *runtimeapi.ContainerConfig) { securityOf(c).NamespaceOptions = shared }, counter,
		},
		"confined": {nil, func(c *runtimeapi.ContainerConfig) {
			securityOf(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
			securityOf(c).MaskedPaths = []string{"/proc/kcore", "/proc/acpi", "/proc/timer_list", "/sys/firmware"}
			securityOf(c).ReadonlyPaths = []string{"/proc/sys", "/proc/bus"}
		}, counter},
		"connected": {nil, nil, "nc -l -p 82 -e cat & while :; do sleep 1; done | nc 127.0.0.1 82 & " + counter},
		"privileged": {
			func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true },
			func(c *runtimeapi.ContainerConfig) { securityOf(c).Privileged = true }, counter,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, _ := n.pod(t, name, tt.pod)
			id := n.run(t, pod, "main", tt.container, "sh", "-c", tt.cmd)
			eventually(t, func() bool { return n.sh(t, id, "cat /data/count || true") != "" })
			request := &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: filepath.Join(t.TempDir(), "c.tar")}
			if _, err := n.CheckpointContainer(context.Background(), request); err != nil {
				t.Error(err)
			}
			n.counting(t, id)
		})
	}
}

// checkpointGivenUp ends the request while the memory is being dumped.
func (n *node) checkpointGivenUp(t *testing.T, handler string) {
	pod, _ := n.podOf(t, handler, "b"+handler, nil)
	id := n.run(t, pod, "main", nil, "sh", "-c", counter)
	eventually(t, func() bool { return n.sh(t, id, "cat /data/count || true") != "" })
	location := filepath.Join(t.TempDir(), "c.tar")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := n.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location})
		done <- err
	}()
	pages := filepath.Join(n.cfg.RootDir, "checkpoints", id, "checkpoint/pages-*")
	for len(done) == 0 {
		if found, _ := filepath.Glob(pages); len(found) > 0 {
			break
		}
	}
	cancel()
	switch err := <-done; {
	case err == nil:
		t.Skip("the checkpoint was done before it could be given up")
	case status.Code(err) != codes.Canceled:
		t.Errorf("got %v", err)
	default:
		t.Log(err)
	}
	n.counting(t, id)
	if got := n.sh(t, id, "echo hi | nc -l -p 81 >/dev/null & until nc -w 5 127.0.0.1 81 </dev/null; do sleep 0.1; done"); got != "hi" {
		t.Errorf("the network of the container: got %q", got)
	}
	left, _ := filepath.Glob(filepath.Join(n.cfg.RootDir, "checkpoints/*"))
	if _, err := os.Lstat(location); len(left) > 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestCheckpointLeftovers: what a checkpoint has left whose maker was killed goes with the next start, the lock of the
// network too.
func TestCheckpointLeftovers(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	if err := os.MkdirAll(filepath.Join(n.core.host.Paths.Checkpoints(), id, "checkpoint"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := os.Open("/proc/" + itoa(c.Record().Pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nft, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	nft.AddTable(&nftables.Table{Name: "CRIU-1", Family: nftables.TableFamilyINet})
	nft.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
	if err := errors.Join(nft.Flush(), n.Close()); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	tables, err := nft.ListTables()
	if err != nil || len(tables) != 1 || tables[0].Name != "other" {
		t.Errorf("tables: got %v, %v", tables, err)
	}
	if left, _ := filepath.Glob(n.core.host.Paths.Checkpoints() + "/*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
