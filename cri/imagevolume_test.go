package cri

import (
	"archive/tar"
	"os"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestImageVolumes: paths in an image stay in it, whatever its links say, and a volume outlives the removal of its
// image.
func TestImageVolumes(t *testing.T) {
	n := newNode(t)
	reg := imagetest.NewRegistry(t)
	link := func(name, to string) imagetest.File {
		return imagetest.File{Name: name, Type: tar.TypeSymlink, Link: to}
	}
	ref, err := imagetest.Push(reg.Host, imagetest.Build(imagetest.Spec{Name: "volume:1", Config: ocispec.ImageConfig{Labels: map[string]string{"a": "volume"}}, Layers: [][]imagetest.File{{
		{Name: "v1/"},
		{Name: "v1/file", Body: "one"},
		{Name: "etc/hostname", Body: "of the image"},
		{Name: "v1/single", Body: "single"},
		link("current", "v1"), link("absolute", "/v1"), link("up", "../../../../etc"), link("deep", "/absolute/../v1/./"), link("loop", "loop"), link("proc", "/proc/self/root"),
	}}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", nil)
	volume := func(sub string) func(*runtimeapi.ContainerConfig) {
		return func(cfg *runtimeapi.ContainerConfig) {
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: ref}, Readonly: true, ImageSubPath: sub}}
		}
	}
	_, err = n.tryRun(pod, "writable", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: ref}}}
	}, "true")
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("one that is to be written: got %v", err)
	}
	var id string
	for sub, want := range map[string]string{
		"": "one", "v1": "one", "./v1/": "one", "current": "one", "absolute": "one", "deep": "one", "up": "of the image", "v1/single": "single",
	} {
		file := map[string]string{"": "/v/v1/file", "up": "/v/hostname", "v1/single": "/v"}[sub]
		if file == "" {
			file = "/v/file"
		}
		id = n.run(t, pod, "c"+strings.Map(func(r rune) rune {
			if r < 'a' {
				return '-'
			}
			return r
		}, sub), volume(sub), "sleep", "1000")
		if got := n.sh(t, id, "cat "+file+"; touch /v/x 2>/dev/null; (echo x > "+file+") 2>/dev/null || echo ' ro'"); got != want+" ro" {
			t.Errorf("%q: got %q", sub, got)
		}
	}
	img, err := n.Local().Images().Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	if m := statusOf(t, n.Server, id).Mounts; len(m) != 1 || len(img.Digests) != 1 || m[0].GetImage().GetImageRef() != img.Digests[0] || m[0].GetImage().GetImage() != ref {
		t.Errorf("the status shows %v, want the image %v", m, img.Digests)
	}
	for sub, want := range map[string]string{
		"..": "lead out", "v1/../../etc": "lead out", "/v1": "relative", "nothing": "no such file", "loop": "too many levels", "proc": "too many levels", "v1/file/x": "not a directory",
	} {
		if _, err := n.tryRun(pod, "refused", volume(sub), "true"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/v") {
			t.Errorf("%q: got %v", sub, err)
		}
	}
	if _, err := n.tryRun(pod, "refused", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: "not-here:1"}, Readonly: true}}
	}, "true"); err == nil || !strings.Contains(err.Error(), "not-here:1") {
		t.Errorf("an image that is not here: got %v", err)
	}

	kept := n.run(t, pod, "kept", volume(""), "sleep", "1000")
	if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if got := n.sh(t, kept, "cat /v/v1/file"); got != "one" {
		t.Errorf("of an image that was removed: got %q", got)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(n.core.host.Paths.Container(kept).ImageMounts()); !os.IsNotExist(err) {
		t.Errorf("its mounts: %v", err)
	}
}
