package image

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// three images that share layers, with enough in them that a kill meets every stage.
func crashSpecs() []imagetest.Spec {
	var body strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&body, "%d,", i)
	}
	shared := files{{Name: "shared", Body: body.String()}}
	var specs []imagetest.Spec
	for i := range 3 {
		own := files{}
		for j := range 50 {
			own = append(own, imagetest.File{Name: fmt.Sprintf("d%d/f%d", j%7, j), Body: body.String()[:1000*(i+1)]})
		}
		specs = append(specs, imagetest.Spec{Name: fmt.Sprintf("crash%d:v1", i), Layers: []files{base, shared, own, {{Name: ".wh.shared"}}}})
	}
	return specs
}

// pullForEver is what the test binary does as the process to be killed: pull, import and remove in one root.
func pullForEver(dir string) {
	w, err := openWorld(dir, func(c *Config) { c.KeepPartial = time.Nanosecond })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	names := strings.Fields(os.Getenv("BERTH_TEST_IMAGES"))
	archive := imagetest.Build(imagetest.Spec{Name: "archived:v1", Layers: []files{base, top}}).OCIArchive()
	fmt.Println("open")
	var wait sync.WaitGroup
	for _, n := range names {
		wait.Go(func() {
			for {
				_, _ = w.Pull(context.Background(), n, nil, nil)
				_ = w.Remove(context.Background(), n)
			}
		})
	}
	wait.Go(func() {
		for {
			_, _ = w.Import(context.Background(), strings.NewReader(string(archive)), nil)
			_ = w.Collect(context.Background())
			_ = w.Remove(context.Background(), "archived:v1")
		}
	})
	wait.Wait()
}

// TestKilled kills the process at moments of chance; what it leaves is whole images and things that Collect removes.
func TestKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
	_, names := served(t, crashSpecs()...)
	dir := t.TempDir()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "BERTH_TEST_PULLER="+dir, "BERTH_TEST_IMAGES="+strings.Join(names, " "))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		w, err := openWorld(dir, func(c *Config) { c.KeepPartial = time.Nanosecond })
		if err != nil {
			t.Fatal(err)
		}
		for _, img := range w.List() {
			if !w.snaps.Exists(img.TopLayer) {
				t.Errorf("image %v has no layers", img.Names())
			}
			if len(img.Tags) == 0 {
				continue
			}
			if name := "etc/a"; w.show(t, img, name) == "" {
				t.Errorf("image %v: %s is empty", img.Names(), name)
			}
		}
		if err := w.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for _, img := range w.List() {
			r, _ := w.images.images.Get(img.ID)
			for _, l := range r.Layers {
				want[l] = true
			}
		}
		for _, i := range w.snaps.List() {
			if !want[i.Key] {
				t.Errorf("layer %s belongs to no image", i.Key)
			}
		}
		for _, n := range names {
			img := mustPull(t, w, n)
			if got := w.show(t, img, "d0/f0"); !strings.HasPrefix(got, "0,1,2,") {
				t.Errorf("file begins with %.10q", got)
			}
		}
		for _, img := range w.List() {
			if err := w.Remove(t.Context(), img.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := w.left(t); left != "" {
			t.Errorf("left:\n%s", left)
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		if dirs, _ := filepath.Glob(filepath.Join(dir, "snapshots", "[0-9]*")); len(dirs) > 0 {
			t.Errorf("directories left: %q", dirs)
		}
	}
}

// TestFullDisk: a pull that fills the disk says so, gives the space back, and harms no other image.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // a sync of the layers may be on its way
			t.Error(err)
		}
	}()
	// More than is free, or more than a pull may take of it.
	for _, fill := range []float64{100, 0.5} {
		t.Run(fmt.Sprint(fill), func(t *testing.T) {
			w, err := openWorld(dir, func(c *Config) { c.MaxFill = fill })
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := w.close(); err != nil {
					t.Error(err)
				}
			}()
			big := imagetest.Spec{Name: "big:v1", Packing: imagetest.Plain, Layers: []files{{{Name: "f", Body: strings.Repeat("x", 9<<20)}}}}
			if fill < 1 {
				big.Packing, big.Layers = imagetest.Gzip, []files{{{Name: "f", Body: strings.Repeat("x", 5<<20)}}}
			}
			_, names := served(t, twoLayers, big)
			small := mustPull(t, w, names[0])
			_, err = w.Pull(t.Context(), names[1], nil, nil)
			if err == nil || !strings.Contains(err.Error(), "no space left") && !strings.Contains(err.Error(), "more than this image may take") {
				t.Fatalf("error is %v", err)
			}
			if fill > 1 && !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error is %v", err)
			}
			t.Log(err)
			if got := w.show(t, small, "etc/a"); got != "two" {
				t.Errorf("etc/a is %q", got)
			}
			waitFor(t, func() bool {
				var st unix.Statfs_t
				return unix.Statfs(dir, &st) == nil && st.Bavail*uint64(st.Bsize) > 7<<20
			})
			if strings.Contains(w.left(t), "ingest") {
				t.Errorf("left:\n%s", w.left(t))
			}
		})
	}
}

// TestOutlive: what is kept of an image is synced where its layers are here, and must be there then; where they are
// not, it gets to the disk with them.
func TestOutlive(t *testing.T) {
	w := newWorld(t)
	_, names := served(t, twoLayers)
	img := mustPull(t, w, names[0])
	absent := digest.FromString("absent")
	for top, want := range map[string]error{img.TopLayer: os.ErrNotExist, "": os.ErrNotExist, absent.String(): nil} {
		if err := w.pulls.content.outlive([]digest.Digest{absent}, w.layers, top); !errors.Is(err, want) {
			t.Errorf("layer %q: %v, not %v", top, err, want)
		}
	}
	if err := w.pulls.content.outlive([]digest.Digest{digest.Digest(img.ID)}, w.layers, img.TopLayer); err != nil {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.KeepPartial = time.Nanosecond })
	three := twoLayers
	three.Name, three.Layers = "three:v1", []files{base, top, {{Name: "new", Body: strings.Repeat("new", 10_000)}}}
	r, names := served(t, twoLayers, three)
	two, more := mustPull(t, w, names[0]), mustPull(t, w, names[1])
	bytes, inodes, err := w.Usage()
	if err != nil || bytes < 32_000 || inodes < 8 {
		t.Errorf("usage is %d, %d, %v", bytes, inodes, err)
	}
	for _, ref := range []string{two.ID, two.ID[:19], strings.TrimPrefix(two.ID, "sha256:")[:12], names[0], two.Digests[0], strings.TrimSuffix(names[0], ":v1") + ":v1@" + strings.SplitAfter(two.Digests[0], "@")[1]} {
		if img, err := w.Get(ref); err != nil || img.ID != two.ID {
			t.Errorf("%q: %v, %v", ref, img.ID, err)
		}
	}
	for _, ref := range []string{"", "absent", "sha256:", "hello", "sha256:" + strings.Repeat("0", 64), "../x"} {
		if _, err := w.Get(ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: error is %v", ref, err)
		}
		if err := w.Remove(t.Context(), ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: error is %v", ref, err)
		}
	}
	if _, err := w.snaps.Prepare(t.Context(), "container", more.TopLayer); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(t.Context(), names[0]); err != nil {
		t.Fatal(err)
	}
	if got := w.show(t, more, "etc/a"); got != "two" {
		t.Errorf("etc/a is %q", got)
	}
	if err := w.Remove(t.Context(), more.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(w.left(t), "layer"); got != 3 || strings.Contains(w.left(t), "blobs") {
		t.Errorf("left under a container:\n%s", w.left(t))
	}
	// The image comes back while a container is on its layers: nothing of them is fetched.
	r.Requests()
	mustPull(t, w, names[1])
	if got := requests(r); got != "GET v1 GET sh" {
		t.Errorf("requests: %s", got)
	}
	if err := errors.Join(w.Remove(t.Context(), names[1]), w.snaps.Remove(t.Context(), "container"), w.Collect(t.Context())); err != nil {
		t.Fatal(err)
	}
	if left := w.left(t); left != "" {
		t.Errorf("left:\n%s", left)
	}
	if bytes, inodes, err := w.Usage(); bytes != 0 || inodes != 0 || err != nil {
		t.Errorf("usage is %d, %d, %v", bytes, inodes, err)
	}
}

// TestUsage is as du says.
func TestUsage(t *testing.T) {
	w := newWorld(t)
	_, names := served(t, crashSpecs()...)
	for _, n := range names {
		mustPull(t, w, n)
	}
	var bytes, inodes uint64
	for _, i := range w.snaps.List() {
		u, err := w.snaps.Usage(t.Context(), i.Key)
		if err != nil {
			t.Fatal(err)
		}
		bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
	}
	gotBytes, gotInodes, _ := w.Usage()
	// Ours counts the manifests too, and not the directories the snapshotter makes; where directories have no blocks of
	// their own (tmpfs), du counts less.
	if gotInodes < inodes-10 || gotInodes > inodes+10 || float64(gotBytes) < 0.9*float64(bytes) || float64(gotBytes) > 1.2*float64(bytes) {
		t.Errorf("%d bytes, %d inodes; du says %d, %d", gotBytes, gotInodes, bytes, inodes)
	}
}

// TestPinned: images are pinned by any of their names, for as long as the configuration says so, and those of archives.
func TestPinned(t *testing.T) {
	other := twoLayers
	other.Name, other.Config.Labels = "team/other:v2", map[string]string{"other": "yes"}
	r, names := served(t, twoLayers, other)
	for pattern, want := range map[string][2]bool{
		names[0]: {true, false}, r.Host + "/*": {true, true}, "*/team/*": {false, true}, "*:v1": {true, false}, "hello:v1": {}, r.Host + "/hello": {}, "": {},
	} {
		w := newWorld(t, func(c *Config) {
			if pattern != "" {
				c.Pinned = []string{"docker.io/library/never:seen", pattern}
			}
		})
		for i, name := range names {
			img := mustPull(t, w, name)
			if got, err := w.Get(img.ID); err != nil || got.Pinned != want[i] || img.Pinned != want[i] {
				t.Errorf("%q, %s: got %+v, %v", pattern, name, got, err)
			}
			// It is a hint for who collects garbage, and no lock.
			if err := w.Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
	}
	// What came with an archive is pinned as long as the archive is there.
	dir := t.TempDir()
	archive := filepath.Join(dir, "a.tar")
	if err := os.WriteFile(archive, imagetest.Build(twoLayers).OCIArchive(), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) { c.Archives = dir })
	pinned := func() (list []bool) {
		for _, i := range w.List() {
			list = append(list, i.Pinned)
		}
		return list
	}
	if err := w.ImportArchives(t.Context(), map[string]bool{}); err != nil || !slices.Equal(pinned(), []bool{true}) {
		t.Errorf("of an archive: pinned is %v, %v", pinned(), err)
	}
	if err := errors.Join(os.Remove(archive), w.ImportArchives(t.Context(), map[string]bool{})); err != nil || !slices.Equal(pinned(), []bool{false}) {
		t.Errorf("without its archive: pinned is %v, %v", pinned(), err)
	}
	c := newWorld(t).cfg
	c.Pinned = []string{"UPPER"}
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "pinned images") {
		t.Errorf("got %v", err)
	}
}

// TestReopened: what was pulled is there after a restart, and what a power cut took is not.
func TestReopened(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
	dir := t.TempDir()
	_, names := served(t, twoLayers)
	for i := range 3 {
		w, err := openWorld(dir)
		if err != nil {
			t.Fatal(err)
		}
		img, err := w.Get(names[0])
		switch i {
		case 0, 2:
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("error is %v", err)
			}
			mustPull(t, w, names[0])
		case 1:
			if err != nil || img.Tags[0] != names[0] {
				t.Fatal(err)
			}
			if err := w.snaps.Remove(t.Context(), img.TopLayer); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShared: two images with the same big layer, pulled at once, fetch it once.
func TestShared(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, crashSpecs()...)
	var wait sync.WaitGroup
	for _, n := range names {
		wait.Go(func() {
			if _, err := w.Pull(t.Context(), n, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	seen := map[string]int{}
	for _, q := range r.Requests() {
		if q.Method == http.MethodGet {
			seen[q.URL.Path[strings.LastIndexByte(q.URL.Path, '/'):]]++
		}
	}
	shared := imagetest.Build(crashSpecs()[0]).Layers[1].Desc.Digest.String()
	if seen["/"+shared] != 1 {
		t.Errorf("fetched %d times", seen["/"+shared])
	}
}
