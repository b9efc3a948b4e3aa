package system

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// registry starts Debian's registry with the test image and a large one in it.
func registry(t *testing.T) string {
	t.Helper()
	addr, installed := imagetest.StartDocker(t)
	if !installed {
		t.Fatal("docker-registry is not installed (make deps installs it)")
	}
	tree := t.TempDir()
	if out, err := exec.Command("tar", "-C", tree, "-xf", testImages(t)[0]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path, err := layout.FromPath(tree)
	if err != nil {
		t.Fatal(err)
	}
	idx, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := idx.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	push := func(ref string) {
		r, err := name.ParseReference(addr+"/"+ref, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(r, img); err != nil {
			t.Fatal(err)
		}
	}
	push("busybox:1")
	for range 3 {
		l, err := random.Layer(8<<20, "application/vnd.oci.image.layer.v1.tar+gzip")
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	push("large:1")
	return addr
}

// faulty puts a proxy that misbehaves on blobs before a registry; it returns the proxy's address.
func faulty(t *testing.T, addr string,
	fault func(n int, w http.ResponseWriter, r *http.Request) (handled bool),
) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	proxy.ErrorLog = nil
	var blobs atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") && fault(int(blobs.Add(1)), w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// cut sends only the first bytes of what the registry would send and then drops the connection.
func cut(addr string, bytes int) func(int, http.ResponseWriter, *http.Request) bool {
	return func(i int, w http.ResponseWriter, r *http.Request) bool {
		if i%2 == 0 {
			return false
		}
		req, _ := http.NewRequest(http.MethodGet, "http://"+addr+r.URL.Path, nil)
		if rng := r.Header.Get("Range"); rng != "" {
			req.Header.Set("Range", rng)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
		w.WriteHeader(resp.StatusCode)
		io.CopyN(w, resp.Body, int64(bytes))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestPull(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := startNode(t, "--pull-stall-timeout=10s")
	n.must("images", "pull", addr+"/busybox:1")
	if got := n.must("images"); !strings.Contains(got, addr+"/busybox") {
		t.Errorf("berth images:\n%s", got)
	}
	n.apply("pulled.yaml", pod("pulled", strings.ReplaceAll(sleeping, image, addr+"/large:1")))
	n.waitReady("pulled")
	n.remove("pulled.yaml")
	n.waitGone("pulled")
	reset := func() {
		n.berth("images", "rm", addr+"/large:1")
	}

	for name, fault := range map[string]func(int, http.ResponseWriter, *http.Request) bool{
		"cut": cut(addr, 3<<20),
		"429": func(i int, w http.ResponseWriter, _ *http.Request) bool {
			if i > 2 {
				return false
			}
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		},
		"500": func(i int, w http.ResponseWriter, _ *http.Request) bool {
			if i > 2 {
				return false
			}
			w.WriteHeader(http.StatusInternalServerError)
			return true
		},
		"stall": func(i int, _ http.ResponseWriter, r *http.Request) bool {
			if i > 1 {
				return false
			}
			<-r.Context().Done()
			return true
		},
	} {
		reset()
		via := faulty(t, addr, fault)
		if out, e, code := n.berth("images", "pull", via+"/large:1"); code != 0 {
			t.Errorf("a registry that answers with %s is not survived: %d %s%s", name, code, out, e)
		}
		n.must("images", "rm", via+"/large:1")
	}

	reset()
	lies := faulty(t, addr, func(_ int, w http.ResponseWriter, r *http.Request) bool {
		resp, err := http.Get("http://" + addr + r.URL.Path)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		b[len(b)/2] ^= 1
		w.Write(b)
		return true
	})
	if out, e, code := n.berth("images", "pull", lies+"/large:1"); code == 0 || !strings.Contains(out+e, "digest") {
		t.Errorf("a changed layer is not told as a wrong digest: %d %s%s", code, out, e)
	}
	if got := n.must("images"); strings.Contains(got, lies) {
		t.Errorf("an image with a wrong digest is listed:\n%s", got)
	}
}

// TestFullDisk pulls onto a disk that is too small: a clear error, and what runs goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t)
	root := filepath.Join(n.Dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", root, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatal(err)
	}
	// Cleanups run in reverse: the mount goes after the agent has ended and before the leak check looks.
	n.t.Cleanup(func() {
		n.kill()
		n.cmd = nil
		exec.Command(bin("berth"), append([]string{"purge", "--yes"}, n.dirArgs()...)...).Run()
		unix.Unmount(root, 0)
	})
	n.start()
	n.apply("a.yaml", pod("a", sleeping))
	before := n.waitReady("a")
	out, e, code := n.berth("images", "pull", addr+"/large:1")
	// The limit on what an image may unpack to is a share of the free disk, so it may be what is met first.
	if code == 0 || !strings.Contains(out+e, "no space left") && !strings.Contains(out+e, "of the disk") {
		t.Errorf("full disk: code %d, %s%s", code, out, e)
	}
	n.requireSame(before, n.waitReady("a"))
	if got := n.must("exec", "a", "--", "echo", "fine"); got != "fine\n" {
		t.Errorf("exec after a full disk: %q", got)
	}
}
