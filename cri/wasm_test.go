package cri

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// buildWasm builds the interpreter, and a module for it.
var buildWasm = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-wasm")
	if err != nil {
		return "", err
	}
	built = append(built, dir)
	for _, b := range []struct {
		out, pkg string
		env      []string
	}{
		{"berth-wasm", "./wasm", []string{"CGO_ENABLED=0"}},
		{"app.wasm", "./testdata/module", []string{"GOOS=wasip1", "GOARCH=wasm"}},
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, b.out), b.pkg)
		cmd.Env = append(os.Environ(), b.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return dir, nil
})

const wasmImage = "berth.test/wasm:1"

// wasmNode is a node with the handler wasm and an image in which there is a module and nothing else.
func wasmNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	dir, err := buildWasm()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.cfg.HandlersFile = filepath.Join(t.TempDir(), "handlers.yaml")
	if err := os.WriteFile(n.cfg.HandlersFile, []byte("handlers: [{name: wasm, type: wasm, path: "+dir+"/berth-wasm}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	module, err := os.ReadFile(filepath.Join(dir, "app.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	archive := imagetest.Build(imagetest.Spec{
		Name: wasmImage, Layers: [][]imagetest.File{{{Name: "app.wasm", Body: string(module), Mode: 0o644}, {Name: "text", Body: "not a module"}}},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm"}, Env: []string{"FROM_IMAGE=1"}},
	}).DockerArchive()
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	return n
}

// module makes a container run the image's module with these arguments.
func module(args ...string) func(*runtimeapi.ContainerConfig) {
	return func(cfg *runtimeapi.ContainerConfig) {
		cfg.Image.Image, cfg.Command, cfg.Args = wasmImage, nil, args
	}
}

func TestWasm(t *testing.T) {
	n := wasmNode(t)
	pod, _ := n.podOf(t, "wasm", "a", nil)
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "in"), []byte("from the volume"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounted := func(args ...string) func(*runtimeapi.ContainerConfig) {
		return func(cfg *runtimeapi.ContainerConfig) {
			module(args...)(cfg)
			cfg.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/data"}}
			cfg.Envs = []*runtimeapi.KeyValue{{Key: "FROM_POD", Value: []byte("two words")}}
			securityOf(cfg).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
			securityOf(cfg).ReadonlyRootfs = true
			securityOf(cfg).RunAsUser = &runtimeapi.Int64Value{Value: int64(os.Geteuid())}
		}
	}
	main := n.run(t, pod, "main", mounted("sleep"))
	eventually(t, func() bool { return logText(t, statusOf(t, n.Server, main).LogPath) == "1two words\n" })
	n.output(t, pod, "copy", mounted("copy", "/data/in", "/data/out"))
	if b, err := os.ReadFile(filepath.Join(volume, "out")); err != nil || string(b) != "from the volume" {
		t.Errorf("got %q, %v", b, err)
	}
	// What a module cannot be is told by the code and on its standard error.
	exec := func(cmd ...string) (int32, string) {
		r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: main, Cmd: cmd})
		if err != nil {
			t.Fatal(err)
		}
		return r.ExitCode, string(r.Stdout) + string(r.Stderr)
	}
	if code, out := exec("/app.wasm", "env", "FROM_POD"); code != 0 || out != "two words\n" {
		t.Errorf("exec: got %d, %q", code, out)
	}
	if code, out := exec("/text"); code != 126 || !strings.Contains(out, `"/text" is not a WebAssembly module`) {
		t.Errorf("exec: got %d, %q", code, out)
	}
	if code, out := exec("sh", "-c", "true"); code != 127 || !strings.Contains(out, `"sh": file does not exist`) {
		t.Errorf("exec: got %d, %q", code, out)
	}
	// SIGTERM is enough: no grace period is this long.
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: main, Timeout: 3600}); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, n.Server, main); st.ExitCode != 143 {
		t.Errorf("got %v", st)
	}
	id := n.run(t, pod, "exit", module("exit"))
	if st := waitExited(t, n.Server, id); st.ExitCode != 5 || logText(t, st.LogPath) != "exits with 5\n" {
		t.Errorf("got %v, %q", st, logText(t, st.LogPath))
	}
	id = n.run(t, pod, "oom", func(cfg *runtimeapi.ContainerConfig) {
		module("grow")(cfg)
		cfg.Linux.Resources.MemoryLimitInBytes = 128 << 20
	})
	if st := waitExited(t, n.Server, id); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("got %v", st)
	}
	id = n.run(t, pod, "missing", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Image.Image, cfg.Command = wasmImage, []string{"nosuch.wasm"}
	})
	if st := waitExited(t, n.Server, id); st.ExitCode != 127 || !strings.Contains(logText(t, st.LogPath), `"nosuch.wasm": file does not exist`) {
		t.Errorf("got %v, %q", st, logText(t, st.LogPath))
	}
}

// TestImageOfHandler: a program of the same name is no image for a handler that runs modules, and is not lost by the
// pull of one that is.
func TestImageOfHandler(t *testing.T) {
	n := wasmNode(t)
	dir, err := buildWasm()
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(filepath.Join(dir, "app.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	reg := imagetest.NewRegistry(t)
	ref, _, err := imagetest.PushIndex(reg.Host, "both:v1",
		imagetest.Build(imagetest.Spec{Layers: [][]imagetest.File{{{Name: "program", Body: "x"}}}}),
		imagetest.Build(imagetest.Spec{
			Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"}, Layers: [][]imagetest.File{{{Name: "app.wasm", Body: string(body)}}},
			Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm"}},
		}))
	if err != nil {
		t.Fatal(err)
	}
	pull := func(handler string) string {
		r, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler}})
		if err != nil {
			t.Fatal(err)
		}
		return r.ImageRef
	}
	check := func(handler, want string) {
		t.Helper()
		spec := &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler}
		st, err := n.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
		if err != nil || st.GetImage().GetId() != want {
			t.Errorf("status for %q: got %s, %v", handler, st.GetImage().GetId(), err)
		}
		l, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: spec}})
		if err != nil || (len(l.GetImages()) == 1) != (want != "") || want != "" && l.Images[0].Id != want {
			t.Errorf("list for %q: got %v, %v", handler, l, err)
		}
	}
	program := pull("")
	check("", program)
	check("wasm", "")
	module := pull("wasm")
	check("", program)
	check("wasm", module)
	pod, _ := n.podOf(t, "wasm", "a", nil)
	got := n.output(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Image.Image, cfg.Command, cfg.Args = ref, nil, []string{"env", "PATH"}
	})
	if !strings.Contains(got, "/bin") {
		t.Errorf("the module says %q", got)
	}
	if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	check("wasm", module)
}
