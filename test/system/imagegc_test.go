package system

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
)

// TestImageGC fills the file system of the images beyond its threshold: those go that were not used for longest, and
// neither pinned ones nor those of pods. When that is not enough, it is told.
func TestImageGC(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t, "--image-gc-high-threshold=50", "--image-gc-low-threshold=40", "--minimum-image-ttl-duration=1ms",
		"--image-gc-period=200ms",
		"--pinned-images=*/pinned*")
	disk := n.disk("root", "128m")
	n.start()
	n.apply("user.yaml", pod("user", sleeping))
	n.waitReady("user")
	statfs := func() (fs unix.Statfs_t) {
		t.Helper()
		if err := unix.Statfs(disk, &fs); err != nil {
			t.Fatal(err)
		}
		return fs
	}
	used := func() float64 {
		fs := statfs()
		return 100 - 100*float64(fs.Bavail)/float64(fs.Blocks)
	}
	has := func(ref string) bool { return strings.Contains(n.must("images"), ref) }
	pull := func(image string) {
		t.Helper()
		img, err := random.Image(10<<20, 1)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(addr+"/"+image, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img); err != nil {
			t.Fatal(err)
		}
		n.must("images", "pull", addr+"/"+image)
		if !has("berth.test/busybox ") {
			t.Fatalf("%s was pulled, and is not there", image)
		}
		n.eventually("room", func() error {
			if got := used(); got >= 50 {
				return fmt.Errorf("%.0f %% are used", got)
			}
			return nil
		})
	}
	pull("pinned")
	for i := range 12 {
		pull(fmt.Sprintf("image-%02d", i))
	}
	if has("image-00") || !has("image-11") || !has("pinned") || !has("berth.test/busybox ") {
		t.Errorf("images that are there:\n%s", n.must("images"))
	}
	reason := map[string]string{"reason": "space"}
	if got := n.metrics("/metrics").get(t, "kubelet_image_garbage_collected_total", reason); got < 1 {
		t.Errorf("kubelet_image_garbage_collected_total is %f", got)
	}

	// What is no image's: all that is free but for a tenth, since how much the images take by now depends on when the
	// agent looked.
	fs := statfs()
	write(t, disk+"/ballast", strings.Repeat("x", int((fs.Bavail-fs.Blocks/10)*uint64(fs.Bsize))))
	n.eventually("the agent to tell that it finds no more", func() error {
		if out := n.must("events"); !strings.Contains(out, "FreeDiskSpaceFailed") || !strings.Contains(out, "ImageGCFailed") {
			return fmt.Errorf("events:\n%s", out)
		}
		if has("image-11") { // it may have told so before
			return fmt.Errorf("images that are there:\n%s", n.must("images"))
		}
		return nil
	})
	if !has("pinned") || !has("berth.test/busybox ") {
		t.Errorf("images that are there:\n%s", n.must("images"))
	}
	if err := os.Remove(disk + "/ballast"); err != nil {
		t.Fatal(err)
	}
	n.remove("user.yaml")
	n.requireNoPods()
}
