package system

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/test/peer"
)

// waitServes waits until the agent answers and has read the manifests, whether or not its runtime is ready.
func (n *Node) waitServes() {
	n.t.Helper()
	n.waitOK("the agent to serve what runs", "/pods")
}

// requireRefused waits until what is new is refused with the reason.
func (n *Node) requireRefused(name, reason string) {
	n.t.Helper()
	n.eventually(name+" to be refused", func() error {
		if out, _, _ := n.berth("events"); !strings.Contains(out, reason) {
			return fmt.Errorf("no event says %q: %s", reason, out)
		}
		return nil
	})
	if p := n.pod(name); p != nil && p.Status.Phase != corev1.PodPending {
		n.t.Errorf("%s is %s", name, p.Status.Phase)
	}
}

// TestReadOnlyRoot has the root directory read-only when the agent starts, as after an error of its file system.
func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	root := n.disk("root", "300m")
	n.start()
	n.apply("old.yaml", pod("old", idle))
	before := n.waitReady("old")
	n.kill()
	n.apply("new.yaml", pod("new", idle))
	t.Cleanup(func() { remount(t, root, 0) })
	remount(t, root, unix.MS_RDONLY)
	n.launch()
	n.waitServes()
	n.requireSame(before, n.waitReady("old"))
	if got := n.sh("old", "echo here"); got != "here\n" {
		t.Errorf("exec: %q", got)
	}
	n.requireRefused("new", "read-only file system")
	if n.healthy() {
		t.Error("the node says that nothing is wrong with it")
	}
	n.kill() // what is known of this boot is in the run directory
	n.launch()
	n.waitServes()
	n.requireSame(before, n.waitReady("old"))
	remount(t, root, 0)
	n.waitReady("new")
	n.requireSame(before, n.waitReady("old"))
	n.waitUp()
	if _, err := os.Stat(filepath.Join(root, "runtime.db.damaged")); err == nil {
		t.Error("records that nothing is wrong with were set aside")
	}
}

func remount(t *testing.T, path string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		t.Fatal(err)
	}
}

// TestFullRoot has a root directory without a free inode, or without room, when the agent starts.
func TestFullRoot(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]string{"inodes": "300m,nr_inodes=3000", "bytes": "64m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			root := n.disk("root", size)
			n.start()
			// The new pod may run as soon as the old one's inodes are free.
			n.apply("old.yaml", pod("old", strings.ReplaceAll(idle, "1000000", "1000001")))
			before := n.waitReady("old")
			n.kill()
			filler := filepath.Join(root, "filler")
			fill(t, filler)
			n.apply("new.yaml", pod("new", idle))
			n.launch()
			n.waitServes()
			n.requireSame(before, n.waitReady("old"))
			n.requireRefused("new", "no space left on device")
			n.remove("old.yaml") // what ends needs no room
			n.eventually("the old pod to end", func() error {
				for _, p := range n.processes() {
					if strings.Contains(p, "1000001") {
						return errors.New(p)
					}
				}
				return nil
			})
			if err := os.RemoveAll(filler); err != nil {
				t.Fatal(err)
			}
			n.waitReady("new")
			n.waitGone("old")
			n.waitUp()
		})
	}
}

// fill makes files until there is no room for another.
func fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		if err == nil && i < 200 {
			err = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 1<<20), 0o600)
		}
		if errors.Is(err, unix.ENOSPC) && i > 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// idle is the rest of a pod that does nothing.
const idle = "\n  containers: [{name: main, image: " + image + ", command: [sleep, '1000000']}]"

// TestPullFreesSpace has a pod whose image has no room. Images that nobody needs go at once, long before the next look
// for them, and the pod starts.
func TestPullFreesSpace(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t, "--image-gc-high-threshold=99", "--image-gc-low-threshold=60", "--minimum-image-ttl-duration=1ms",
		"--image-gc-period=1h")
	n.disk("root", "128m")
	n.start()
	for i := range 3 {
		n.must("images", "pull", push(t, addr, fmt.Sprintf("old-%d", i), 20<<20))
	}
	// While it is pulled an image takes its size twice, as it comes and unpacked. It has no program, so that the pod
	// stays as it is; it is there, which is all that counts here.
	n.apply("big.yaml", pod("big", "\n  containers: [{name: main, image: "+push(t, addr, "big",
		36<<20)+", command: [none]}]"))
	n.eventually("the image to be there", func() error {
		if out := n.must("images"); !strings.Contains(out, "/big ") {
			return errors.New(out)
		}
		return nil
	})
	n.logHas("image cannot be pulled for want of space")
	if out := n.must("images"); strings.Count(out, "/old-") == 3 {
		t.Errorf("nothing had to go:\n%s", out)
	}
	n.remove("big.yaml")
	n.requireNoPods()
}

// push puts an image of a size into a registry, and returns its name there.
func push(t *testing.T, addr, image string, size int64) string {
	t.Helper()
	img, err := random.Image(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(addr+"/"+image, name.Insecure)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return addr + "/" + image
}

// collecting are settings with which images go as soon as there is no room, and not before.
var collecting = []string{
	"--image-gc-high-threshold=90", "--image-gc-low-threshold=60", "--minimum-image-ttl-duration=0s", "--image-gc-period=1h",
}

// TestPodFreesSpace has a pod that has its image, and nowhere to put anything else. Images that nobody needs go at
// once.
func TestPodFreesSpace(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t, collecting...)
	root := n.disk("root", "128m")
	n.start()
	for i := range 3 {
		n.must("images", "pull", push(t, addr, fmt.Sprintf("old-%d", i), 20<<20))
	}
	fill(t, filepath.Join(root, "filler"))
	n.apply("new.yaml", pod("new", idle))
	n.waitReady("new")
	n.logHas("there is no room for a part of a pod")
	if strings.Contains(n.must("images"), "/old-0 ") {
		t.Errorf("nothing had to go:\n%s", n.must("images"))
	}
	n.remove("new.yaml")
	n.requireNoPods()
}

// TestImportFreesSpace imports images that have no room, by a command and from the directory.
func TestImportFreesSpace(t *testing.T) {
	t.Parallel()
	addr := registry(t)
	n := newNode(t, collecting...)
	n.disk("root", "128m")
	n.start()
	var names []string
	for i := range 3 {
		names = append(names, push(t, addr, fmt.Sprintf("old-%d", i), 30<<20))
	}
	// With these there is no room for one of 40 MiB.
	old := func(but string) {
		t.Helper()
		n.must("images", "rm", but)
		for _, name := range names {
			n.must("images", "pull", name)
		}
	}
	for _, name := range names {
		n.must("images", "pull", name)
	}
	pulled := push(t, addr, "pulled", 40<<20)
	n.must("images", "pull", pulled)
	old(pulled)
	archive := filepath.Join(n.Dir, "imported.tar")
	archived(t, archive, "berth.test/imported:1", 40<<20)
	tries := 0
	for code := 1; code != 0; tries++ {
		var out string
		if _, out, code = n.berth("images", "import", archive); code != 0 && !strings.Contains(out, "import it again") {
			t.Fatalf("import where there is no room: %d, %s", code, out)
		}
	}
	if tries == 1 {
		t.Error("there was room at once")
	}
	old("berth.test/imported:1")
	n.kill()
	archived(t, filepath.Join(n.Dir, "images/found.tar"), "berth.test/found:1", 40<<20)
	n.start()
	n.eventually("the archive of the directory to be imported", func() error {
		if out := n.must("images"); !strings.Contains(out, "/found ") {
			return errors.New(out)
		}
		return nil
	})
}

// archived writes an archive of an image of a size.
func archived(t *testing.T, path, image string, size int64) {
	t.Helper()
	img, err := random.Image(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(image)
	if err == nil {
		err = tarball.WriteToFile(path, tag, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFreshRoot has a node that was never started come up on a root directory in which nothing can be made. It serves
// what it can, refuses what is new with the reason, and comes to work without another start once it can write.
func TestFreshRoot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size, reason string
		spoil, mend  func(t *testing.T, root string)
		peer         bool
	}{
		"read-only":       {"300m", "read-only file system", makeReadOnly, makeWritable, false},
		"inodes":          {"300m,nr_inodes=3000", "no space left on device", fillRoot, emptyRoot, false},
		"another runtime": {"300m", "read-only file system", makeReadOnly, makeWritable, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.peer {
				peers.Store(t.Name(), peer.Containerd(t))
			}
			port := freePort(t)
			n := newNode(t, fmt.Sprintf("--port=%d", port), "--address=127.0.0.1", "--qos-reserved=memory=10%")
			root := n.disk("root", c.size)
			t.Cleanup(func() { c.mend(t, root) })
			c.spoil(t, root)
			n.apply("new.yaml", pod("new", idle))
			n.launch()
			n.waitServes()
			n.requireRefused("new", c.reason)
			n.eventually("the pod to say why it waits", func() error {
				if out := n.must("describe", "new"); !strings.Contains(out, c.reason) {
					return errors.New(out)
				}
				return nil
			})
			if n.healthy() && !c.peer { // of another runtime nothing is wrong
				t.Error("the node says that nothing is wrong with it")
			}
			prefix := filepath.Join(n.Dir, "ann")
			n.must("cert", "ann", "--out", prefix)
			certified := func() {
				t.Helper()
				client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
					CertFile: prefix + ".crt", KeyFile: prefix + ".key", CAFile: prefix + "-ca.crt",
				}})
				if err != nil {
					t.Fatal(err)
				}
				defer client.CloseIdleConnections()
				resp, err := client.Get(fmt.Sprintf("https://localhost:%d/pods", port))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("by HTTPS: %s", resp.Status)
				}
			}
			certified()
			if out, _, _ := n.berth("check", "--root-dir="+root); !strings.Contains(out, c.reason) {
				t.Errorf("check does not say why: %s", out)
			}
			c.mend(t, root)
			n.waitReady("new")
			if got := n.sh("new", "echo here"); got != "here\n" {
				t.Errorf("exec: %q", got)
			}
			n.waitUp()
			certified()
			for _, dir := range []string{"device-plugins/kubelet.sock", "plugins_registry", "pod-resources/kubelet.sock"} {
				n.eventually(dir+" to be there", func() error {
					_, err := os.Stat(filepath.Join(root, dir))
					return err
				})
			}
			b, err := os.ReadFile(n.Log)
			if got := strings.Count(string(b), "nothing new is begun"); err != nil || got != 1 && !c.peer {
				t.Errorf("the log says %d times that nothing new is begun (%v)", got, err)
			}
			before := n.waitReady("new")
			n.kill()
			n.start()
			n.requireSame(before, n.waitReady("new"))
			n.remove("new.yaml")
			n.requireNoPods()
		})
	}
}

func makeReadOnly(t *testing.T, root string) { remount(t, root, unix.MS_RDONLY) }

func makeWritable(t *testing.T, root string) { remount(t, root, 0) }

func fillRoot(t *testing.T, root string) { fill(t, filepath.Join(root, "filler")) }

func emptyRoot(t *testing.T, root string) {
	if err := os.RemoveAll(filepath.Join(root, "filler")); err != nil {
		t.Fatal(err)
	}
}

// healthy says that the node says so.
func (n *Node) healthy() bool {
	resp, err := n.client.Get("http://node/healthz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
