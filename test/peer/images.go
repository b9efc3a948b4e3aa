package peer

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	write "github.com/google/go-containerregistry/pkg/v1/remote"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The test images are of a host that there is not; the runtime is told to ask a registry of this process instead.
const (
	imageHost  = "berth.test"
	pauseImage = imageHost + "/pause:1"
)

func (r *Runtime) serveImages(t *testing.T) {
	t.Helper()
	r.registry = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(r.registry.Close)
	r.offer(t, filepath.Join(r.Images, "pause.tar"))
}

func (r *Runtime) registryAddress() string { return strings.TrimPrefix(r.registry.URL, "http://") }

// Import gives the runtime, which runs, the image of an OCI archive. The CRI has no import: the image is pulled.
func (r *Runtime) Import(t *testing.T, archive string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	image := r.offer(t, archive)
	if _, err := r.client.PullImage(ctx,
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Fatalf("import %s into %s: %v", archive, r.Name, err)
	}
}

// offer puts the image of an archive into the registry and returns its name.
func (r *Runtime) offer(t *testing.T, archive string) string {
	t.Helper()
	image, img := open(t, archive)
	ref, err := name.ParseReference(r.registryAddress()+strings.TrimPrefix(image, imageHost), name.Insecure)
	must(t, err)
	must(t, write.Write(ref, img))
	return image
}

func open(t *testing.T, archive string) (string, v1.Image) {
	t.Helper()
	tree := t.TempDir()
	if out, err := exec.Command("tar", "-C", tree, "-xf", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path, err := layout.FromPath(tree)
	must(t, err)
	index, err := path.ImageIndex()
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	d := manifest.Manifests[0]
	img, err := index.Image(d.Digest)
	must(t, err)
	image := d.Annotations["io.containerd.image.name"]
	if image == "" {
		image = d.Annotations["org.opencontainers.image.ref.name"]
	}
	if !strings.HasPrefix(image, imageHost+"/") {
		b, _ := os.ReadFile(filepath.Join(tree, "index.json"))
		t.Fatalf("%s: no image of %s in %s", archive, imageHost, b)
	}
	return image, img
}
