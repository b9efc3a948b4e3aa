package system

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/api"
)

// pruned is what berth prune says, by kind and name.
func (n *Node) pruned(args ...string) (api.Pruned, map[string]api.Freed) {
	n.t.Helper()
	var p api.Pruned
	if err := json.Unmarshal([]byte(n.must(append([]string{"prune", "-o", "json"}, args...)...)), &p); err != nil {
		n.t.Fatal(err)
	}
	by := map[string]api.Freed{}
	for _, f := range p.Items {
		by[f.Kind+" "+f.Name] = f
	}
	return p, by
}

// TestPrune: what no pod needs is said, and goes: images, of which a layer that two have in common counts once, a dead
// container, and logs and the directory of pods that are gone. What pods need stays, and what is pinned.
func TestPrune(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t, "--minimum-image-ttl-duration=1ms", "--pinned-images=*/pinned*", "--backoff-initial=0s")
	if n.peer != nil {
		t.Skip("what images share only the embedded runtime tells")
	}
	n.start()
	n.apply("user.yaml", pod("user", sleeping))
	n.waitReady("user")
	n.apply("again.yaml", pod("again", `
  containers:
  - {name: c, image: `+image+`, command: [sh, -c, 'test -e /v/1 && exec sleep 1000; echo some words; touch /v/1'], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, emptyDir: {}}]`))
	// The agent looks for what is left of pods by itself when a container was started: this is the last.
	n.wait("again", "ready again", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 &&
			p.Status.ContainerStatuses[0].Ready
	})
	push := func(image string, img v1.Image) {
		t.Helper()
		ref, err := name.ParseReference(addr+"/"+image, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img); err != nil {
			t.Fatal(err)
		}
		n.must("images", "pull", addr+"/"+image)
	}
	base, err := random.Image(4<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"one:v1", "two:v1", "pinned:v1"} {
		img := base
		if image == "pinned:v1" {
			if img, err = random.Image(1<<20, 1); err != nil {
				t.Fatal(err)
			}
		}
		layer, err := random.Layer(1<<20, "application/vnd.docker.image.rootfs.diff.tar.gzip")
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
		push(image, img)
	}
	logs := filepath.Join(n.Dir, "logs", "default_gone_1-1")
	theirs := filepath.Join(n.Dir, "logs", "default_theirs_2-2")
	gone := filepath.Join(n.Dir, "root", "pods", "3-3")
	left := func() {
		t.Helper()
		for _, d := range []string{filepath.Join(logs, "c"), theirs, gone} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, filepath.Join(logs, "c", "0.log"), strings.Repeat("x", 64<<10))
		if err := unix.Lsetxattr(logs, "trusted.berth.root", []byte(filepath.Join(n.Dir, "root")), 0); err != nil {
			t.Skipf("needs trusted attributes: %v", err)
		}
	}
	// How old an image is counts from when the agent has seen it. Its own look for what is left of pods, a moment after
	// a container was started, may still come, and removes what this would have shown.
	var said api.Pruned
	var by map[string]api.Freed
	n.eventually("the images to be old enough, and what is left of pods to be shown", func() error {
		left()
		said, by = n.pruned("--dry-run")
		for _, key := range []string{"image " + addr + "/one:v1", "image " + addr + "/two:v1", "logs " + logs, "pod " + gone} {
			if _, ok := by[key]; !ok {
				return fmt.Errorf("%s is not in %+v", key, said)
			}
		}
		return nil
	})
	one, two := by["image "+addr+"/one:v1"].Bytes, by["image "+addr+"/two:v1"].Bytes
	if least, most := min(one, two), max(one, two); least < 1<<20 || least > 2<<20 || most < 5<<20 || most > 7<<20 {
		t.Errorf("images free %d and %d bytes, want that of a layer of 4 MiB once", one, two)
	}
	if !said.DryRun || by["logs "+logs].Bytes < 64<<10 || by["container c"].Bytes == 0 || by["container c"].Pod == "" {
		t.Errorf("said %+v", said)
	}
	if _, ok := by["pod "+gone]; !ok || len(said.Items) != 5 {
		t.Errorf("said %+v", said)
	}
	if out := n.must("prune", "--dry-run"); !strings.Contains(out, "Would free ") || !strings.Contains(out, "one:v1") {
		t.Errorf("said:\n%s", out)
	}
	did, done := n.pruned()
	if did.DryRun || len(did.Errors) > 0 {
		t.Errorf("did %+v, said %+v", did, said)
	}
	for key, f := range by {
		// What is left of pods the agent's own look may have removed in between.
		if d, ok := done[key]; d.Bytes != f.Bytes && (ok || f.Kind != "logs" && f.Kind != "pod") {
			t.Errorf("%s: did %+v, said %+v", key, did, said)
		}
		delete(done, key)
	}
	if len(done) > 0 {
		t.Errorf("did what was not said: %+v", done)
	}
	for path, there := range map[string]bool{logs: false, gone: false, theirs: true} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
	out := n.must("images")
	if strings.Contains(out, "/one") || strings.Contains(out, "/two") || !strings.Contains(out, "/pinned") || !strings.Contains(out, "busybox ") {
		t.Errorf("images that are there:\n%s", out)
	}
	if out := n.must("prune"); out != "Freed 0B.\n" {
		t.Errorf("the second time:\n%s", out)
	}
	if _, e, code := n.berth("prune", "-o", "wide"); code != 2 || !strings.Contains(e, "must be json or yaml") {
		t.Errorf("exit code %d: %s", code, e)
	}
	if err := os.Remove(theirs); err != nil {
		t.Fatal(err)
	}
	n.remove("user.yaml")
	n.remove("again.yaml")
	n.requireNoPods()
}
