package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BERTH_TEST_PULLER"); dir != "" {
		pullForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

// world is a store with what it stands on.
type world struct {
	*Store
	dir   string
	cfg   Config
	snaps snapshot.Snapshotter
	close func() error
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
	w, err := openWorld(t.TempDir(), change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func openWorld(dir string, change ...func(*Config)) (*world, error) {
	db, err := store.Open(store.Config{Path: filepath.Join(dir, "runtime.db")})
	if err != nil {
		return nil, err
	}
	snaps, err := snapshot.New(filepath.Join(dir, "snapshots"), db, nil)
	if err != nil {
		return nil, err
	}
	if err := snaps.Clean(context.Background()); err != nil {
		return nil, err
	}
	c := Config{Root: filepath.Join(dir, "content"), DB: db, Snapshots: snaps, KeepPartial: time.Hour}
	for _, f := range change {
		f(&c)
	}
	s, err := Open(c)
	if err != nil {
		return nil, err
	}
	return &world{Store: s, dir: dir, cfg: c, snaps: c.Snapshots, close: func() error {
		return errors.Join(s.Close(), c.Snapshots.Clean(context.Background()), c.Snapshots.Swept(context.Background()),
			db.Close())
	}}, nil
}

// left lists all layers, blobs and beginnings of blobs that are there.
func (w *world) left(t testing.TB) string {
	t.Helper()
	var all []string
	for _, i := range w.snaps.List() {
		all = append(all, string(i.Kind)+" "+i.Key[:min(12, len(i.Key))])
	}
	for _, pattern := range []string{"blobs/*/*", "ingest/*"} {
		files, err := filepath.Glob(filepath.Join(w.dir, "content", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			all = append(all, strings.TrimPrefix(f, filepath.Join(w.dir, "content")+"/"))
		}
	}
	for k := range w.layers.records.All() {
		if !w.snaps.Exists(k) {
			all = append(all, "record of layer "+k[:12])
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// show mounts the image and reads a file of it.
func (w *world) show(t testing.TB, img Image, name string) string {
	t.Helper()
	mounts, err := w.snaps.View(t.Context(), "view", img.TopLayer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	defer func() {
		if err := errors.Join(snapshot.Unmount(dir), w.snaps.Remove(t.Context(), "view")); err != nil {
			t.Error(err)
		}
	}()
	for _, m := range mounts {
		if err := m.Mount(dir); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type files = []imagetest.File

var (
	base = files{
		{Name: "etc/"},
		{Name: "etc/a", Body: "one"},
		{Name: "etc/b", Body: "one"},
		{Name: "tmp/", Mode: 0o1777},
	}
	top       = files{{Name: "etc/.wh.b"}, {Name: "etc/a", Body: "two"}, {Name: "tmp/x", Body: "x"}}
	twoLayers = imagetest.Spec{Name: "hello:v1", Layers: []files{base, top}, Config: ocispec.ImageConfig{
		User: "1000:users", Entrypoint: []string{"/sh"}, Cmd: []string{"-c"}, Env: []string{"A=b"}, WorkingDir: "/etc",
		StopSignal: "SIGINT",
		Labels:     map[string]string{"l": "m"}, Volumes: map[string]struct{}{"/b": {}, "/a": {}},
	}}
)

// served is images in a registry of their own.
func served(t testing.TB, specs ...imagetest.Spec) (*imagetest.Registry, []string) {
	t.Helper()
	r := imagetest.NewRegistry(t)
	var names []string
	for _, s := range specs {
		name, err := imagetest.Push(r.Host, imagetest.Build(s))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return r, names
}

func mustPull(t testing.TB, w *world, name string) Image {
	t.Helper()
	img, err := w.Pull(t.Context(), name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func requests(r *imagetest.Registry) string {
	var all []string
	for _, q := range r.Requests() {
		all = append(all, q.Method+" "+q.URL.Path[strings.LastIndexByte(q.URL.Path, '/')+1:][:2])
	}
	return strings.Join(all, " ")
}

func TestPull(t *testing.T) {
	for _, independent := range []bool{true, false} {
		for _, packing := range []imagetest.Packing{imagetest.Gzip, imagetest.Zstd, imagetest.Plain} {
			for _, docker := range []bool{false, true} {
				t.Run(fmt.Sprint(independent, packing, docker), func(t *testing.T) {
					w := newWorld(t, func(c *Config) {
						if !independent {
							var err error
							if c.Snapshots, err = snapshot.NewNative(filepath.Join(t.TempDir(), "native"), c.DB,
								nil); err != nil {
								t.Fatal(err)
							}
						}
					})
					spec := twoLayers
					spec.Packing, spec.Docker = packing, docker
					built := imagetest.Build(spec)
					_, names := served(t, spec)
					img := mustPull(t, w, names[0])
					if img.ID != built.ID || img.ManifestDigest != built.Digest.String() || len(img.Tags) != 1 ||
						img.Tags[0] != names[0] ||
						len(img.Digests) != 1 || img.Digests[0] != strings.TrimSuffix(names[0],
						":v1")+"@"+built.Digest.String() {
						t.Errorf("%+v", img)
					}
					user, group := img.User()
					if user != "1000" || group != "users" || img.StopSignal() != "SIGINT" ||
						img.WorkingDir() != "/etc" || fmt.Sprint(
						img.Entrypoint(), img.Cmd(), img.Env(), img.Labels(),
						img.Volumes()) != "[/sh] [-c] [A=b] map[l:m] [/a /b]" {
						t.Errorf("%+v", img.Config)
					}
					if got := w.show(t, img, "etc/a"); got != "two" {
						t.Errorf("etc/a is %q", got)
					}
					if got := strings.Count(w.left(t), "blobs/"); got != 2 { // manifest and configuration
						t.Errorf("left:\n%s", w.left(t))
					}
				})
			}
		}
	}
}

// TestImplied: a layer that just puts a file into /tmp leaves it as it was.
func TestImplied(t *testing.T) {
	w := newWorld(t)
	_, names := served(t, twoLayers)
	img := mustPull(t, w, names[0])
	dir := view(t, w, img)
	st, err := os.Stat(filepath.Join(dir, "tmp"))
	if err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o777 || !st.ModTime().Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%v %v, %v", st.Mode(), st.ModTime(), err)
	}
}

// TestThroughLinks: a layer with names that go through a symbolic link of a layer below, as some builders make them,
// and with a hard link to a file that only a layer below has.
func TestThroughLinks(t *testing.T) {
	w := newWorld(t)
	spec := twoLayers
	spec.Layers = []files{
		{
			{Name: "usr/", Mode: 0o711},
			{Name: "usr/lib/", Mode: 0o751},
			{Name: "usr/lib/old", Body: "old"},
			{Name: "usr/lib/gone", Body: "x"},
			{Name: "lib", Type: tar.TypeSymlink, Link: "usr/lib"},
			{
				Name: "etc/a", Body: "a", Mode: 0o640,
			},
		},
		{{Name: "lib/new/file", Body: "new"}, {Name: "lib/.wh.gone"}},
		{{Name: "etc/b", Type: tar.TypeLink, Link: "etc/a"}, {Name: "top", Body: "t"}},
		{{Name: "lib/last", Body: "last"}},
	}
	_, names := served(t, spec)
	img := mustPull(t, w, names[0])
	dir := view(t, w, img)
	for name, want := range map[string]string{
		"usr/lib/old": "old", "usr/lib/new/file": "new", "lib/last": "last",
		"etc/a": "a", "etc/b": "a", "top": "t",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "usr/lib/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted file: %v", err)
	}
	if to, err := os.Readlink(filepath.Join(dir, "lib")); err != nil || to != "usr/lib" {
		t.Errorf("link: %q, %v", to, err)
	}
	for name, mode := range map[string]fs.FileMode{"usr": 0o711, "usr/lib": 0o751, "etc/b": 0o640} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// view mounts an image for the time of a test.
func view(t *testing.T, w *world, img Image) string {
	t.Helper()
	mounts, err := w.snaps.View(t.Context(), "view", img.TopLayer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = errors.Join(snapshot.Unmount(dir), w.snaps.Remove(context.Background(), "view")) })
	if err := mounts[0].Mount(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPullByDigest wants what is here already by the name of a repository that does not have it: it must not be given
// out by that name, as if the registry had let whoever asks have it.
func TestPullByDigest(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, twoLayers)
	first := mustPull(t, w, names[0])
	r.Requests()
	_, digest, _ := strings.Cut(first.Digests[0], "@")
	if img, err := w.Pull(t.Context(), r.Host+"/other@"+digest, nil, nil); err == nil {
		t.Errorf("%+v", img)
	}
	if got := requests(r); got != "GET sh" {
		t.Errorf("requests: %s", got)
	}
	if img, err := w.Get(first.ID); err != nil || len(img.Digests) != 1 {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestPullAgain(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, twoLayers)
	first := mustPull(t, w, names[0])
	r.Requests()
	if again := mustPull(t, w, names[0]); again.ID != first.ID || !again.PulledAt.Equal(first.PulledAt) {
		t.Errorf("%+v", again)
	}
	if got := requests(r); got != "HEAD v1" {
		t.Errorf("requests: %s", got)
	}
	if mustPull(t, w, first.Digests[0]).ID != first.ID {
		t.Error("another image by digest")
	}
	// A third layer on top of the same two, under the same tag.
	spec := twoLayers
	spec.Layers = []files{base, top, {{Name: "new", Body: "new"}}}
	moved := imagetest.Build(spec)
	if _, err := imagetest.Push(r.Host, moved); err != nil {
		t.Fatal(err)
	}
	r.Requests()
	img := mustPull(t, w, names[0])
	if img.ID != moved.ID || len(w.List()) != 2 {
		t.Errorf("%+v of %d", img, len(w.List()))
	}
	if got := requests(r); got != "HEAD v1 GET v1 GET sh GET sh" {
		t.Errorf("requests: %s", got) // manifest, configuration, one layer
	}
	if old, err := w.Get(first.ID); err != nil || len(old.Tags) != 0 || len(old.Digests) != 1 {
		t.Errorf("%+v, %v", old, err)
	}
}

func TestPlatforms(t *testing.T) {
	r := imagetest.NewRegistry(t)
	var images []*imagetest.Image
	for _, p := range []ocispec.Platform{
		{OS: "linux", Architecture: "arm", Variant: "v6"},
		{OS: "linux", Architecture: "arm", Variant: "v7"},
		{OS: "windows", Architecture: "amd64"},
		{OS: "linux", Architecture: "arm64", Variant: "v8"},
		{OS: "linux", Architecture: "amd64"},
		{OS: "unknown", Architecture: "unknown"},
	} {
		images = append(images, imagetest.Build(imagetest.Spec{
			Platform: &p, Layers: []files{{{Name: "p", Body: p.Architecture + p.Variant}}},
		}))
	}
	name, index, err := imagetest.PushIndex(r.Host, "multi:v1", images...)
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[string]ocispec.Platform{
		"armv7": {OS: "linux", Architecture: "arm", Variant: "v7"}, "armv6": {
			OS: "linux", Architecture: "arm", Variant: "v6",
		},
		"arm64v8": {OS: "linux", Architecture: "arm64"}, "amd64": {OS: "linux", Architecture: "amd64"},
	} {
		w := newWorld(t, func(c *Config) { c.Platform = &p })
		img := mustPull(t, w, name)
		if got := w.show(t, img, "p"); got != want || img.Digests[0] != r.Host+"/multi@"+index.String() {
			t.Errorf("want %s, got %s %v", want, got, img.Digests)
		}
	}
	w := newWorld(t, func(c *Config) { c.Platform = &ocispec.Platform{OS: "linux", Architecture: "riscv64"} })
	if _, err := w.Pull(t.Context(), name, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "not made for this machine, but for linux/arm/v6, linux/arm/v7") {
		t.Errorf("error is %v", err)
	}
}

// TestOne: pulls of the same name are one, as long as anybody waits.
func TestOne(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, twoLayers)
	hold := make(chan struct{})
	r.Fault(func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
		<-hold
		next.ServeHTTP(rw, q)
	})
	impatient, leave := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var told atomic.Int32
	for i := range 5 {
		wait.Go(func() {
			ctx := t.Context()
			if i == 0 {
				ctx = impatient
			}
			_, err := w.Pull(ctx, names[0], nil, func(Progress) { told.Add(1) })
			if i == 0 != errors.Is(err, context.Canceled) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	waitFor(t, func() bool {
		w.pulls.flights.mu.Lock()
		defer w.pulls.flights.mu.Unlock()
		f := w.pulls.flights.of["program "+names[0]]
		if f == nil {
			return false
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.waiters) == 5
	})
	leave()
	close(hold)
	wait.Wait()
	if got := requests(r); got != "GET v1 GET sh GET sh GET sh" {
		t.Errorf("requests: %s", got)
	}
	if told.Load() == 0 {
		t.Error("no progress was told")
	}
}

// waitFor polls, for what announces itself in no other way.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never happened")
		}
	}
}

var heavy = imagetest.Spec{
	Name: "heavy:v1", Packing: imagetest.Plain, Layers: []files{
		base, {{Name: "f", Body: strings.Repeat("0123456789abcdef", 100_000)}},
	},
}

// stopAfter lets n bytes of the big layer through and then waits until the client has gone.
func stopAfter(n int, reached func()) func(http.ResponseWriter, *http.Request, http.Handler) {
	big := imagetest.Build(heavy).Layers[1].Desc.Digest.Encoded()
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasSuffix(r.URL.Path, big) {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&stopper{w, n, r, reached}, r)
	}
}

type stopper struct {
	http.ResponseWriter
	left    int
	r       *http.Request
	reached func()
}

func (s *stopper) Write(p []byte) (int, error) {
	n, err := s.ResponseWriter.Write(p[:min(len(p), s.left)])
	if s.left -= n; s.left == 0 {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		s.reached()
		<-s.r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// TestGivenUp: when nobody waits any more, a pull ends; the next one goes on where it stopped.
func TestGivenUp(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, heavy)
	ctx, cancel := context.WithCancel(t.Context())
	big := imagetest.Build(heavy).Layers[1].Desc
	r.Fault(stopAfter(1_000_000, func() {
		waitFor(t, func() bool {
			info, err := os.Stat(w.pulls.content.partial(big.Digest))
			return err == nil && info.Size() >= 900_000
		})
		cancel()
	}))
	if _, err := w.Pull(ctx, names[0], nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v", err)
	}
	r.Fault(nil)
	r.Requests()
	mustPull(t, w, names[0])
	resumed := false
	for _, q := range r.Requests() {
		resumed = resumed || strings.HasPrefix(q.Header.Get("Range"), "bytes=9") ||
			strings.HasPrefix(q.Header.Get("Range"), "bytes=1000000-")
	}
	if !resumed {
		t.Error("the layer was fetched from its beginning")
	}
	if strings.Contains(w.left(t), "ingest") {
		t.Errorf("left:\n%s", w.left(t))
	}
}

// TestDamaged: what a power cut has made of a beginning is noticed, and fetched again.
func TestDamaged(t *testing.T) {
	w := newWorld(t)
	_, names := served(t, heavy)
	big := imagetest.Build(heavy).Layers[1]
	if err := os.MkdirAll(filepath.Dir(w.pulls.content.partial(big.Desc.Digest)), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{
		make([]byte, 1_000_000), make([]byte, len(big.Data)), make([]byte, len(big.Data)+1),
		append(big.Data[:500_000:500_000], make([]byte, 1000)...),
	} {
		if err := os.WriteFile(w.pulls.content.partial(big.Desc.Digest), data, 0o600); err != nil {
			t.Fatal(err)
		}
		img := mustPull(t, w, names[0])
		if got := w.show(t, img, "f"); len(got) != 1_600_000 || strings.Trim(got, "0123456789abcdef") != "" {
			t.Errorf("f has %d bytes", len(got))
		}
		if err := w.Remove(t.Context(), names[0]); err != nil {
			t.Fatal(err)
		}
	}
}
