package system

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const sleeping = "\n  containers: [{name: main, image: " + image + ", command: [sleep, '1000000']}]"

func (n *Node) logHas(words ...string) {
	n.t.Helper()
	n.eventually("the agent to say "+strings.Join(words, " ... "), func() error {
		b, err := os.ReadFile(n.Log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return nil
			}
		}
		return os.ErrNotExist
	})
}

// TestBadManifestsHarmNothing turns a running pod's file invalid in several ways: the pod stays, and the field is
// named.
func TestBadManifestsHarmNothing(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("a.yaml", pod("a", sleeping))
	before := n.waitReady("a")

	for _, bad := range []struct {
		manifest string
		says     []string
	}{
		{pod("a", "\n  containers: [{name: main}]"), []string{"a.yaml", "spec.containers[0].image"}},
		{pod("a", "\n  containers: {name: main}"), []string{"a.yaml", "containers"}},
		{"{{{", []string{"a.yaml"}},
		{pod("a", "\n  hostUsers: maybe"+sleeping), []string{"a.yaml", "hostUsers"}},
		{strings.Replace(pod("a", sleeping), "name: a", "name: '../../etc'", 1), []string{"a.yaml", "metadata.name"}},
		{strings.Repeat("# ten megabytes\n", 11<<20/16) + pod("a", sleeping), []string{"a.yaml", "10485760"}},
		{"", nil},
	} {
		n.apply("a.yaml", bad.manifest)
		if bad.says != nil {
			n.logHas(bad.says...)
		}
		if p := n.pod("a"); p == nil && bad.manifest != "" {
			t.Fatalf("the pod is gone after %.80q", bad.manifest)
		} else if bad.manifest != "" {
			n.requireSame(before, p)
		}
		if bad.manifest == "" {
			break
		}
	}
	n.apply("a.yaml", pod("a", sleeping))
	n.waitReady("a")

	// A second claimant of a name does not disturb the first.
	n.apply("b.yaml", pod("a", strings.Replace(sleeping, "1000000", "5", 1)))
	n.logHas("a.yaml", "b.yaml")
	n.remove("b.yaml")

	// A field that the API does not know is named, and the pod runs.
	n.apply("c.yaml", pod("c", "\n  nodSelector: {a: b}"+sleeping))
	n.logHas("c.yaml", "nodSelector")
	n.waitReady("c")
}

// TestManifestDirectory takes the directory away and brings it back.
func TestManifestDirectory(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := filepath.Join(n.Dir, "manifests")
	n.apply("a.yaml", pod("a", sleeping))
	before := n.waitReady("a")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	n.logHas("manifests")
	n.requireSame(before, n.waitReady("a"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.apply("b.yaml", pod("b", sleeping))
	n.waitReady("b")
	n.waitGone("a")
	n.remove("b.yaml")
	n.waitGone("b")

	// A symbolic link that is swapped, as a ConfigMap's mount is.
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(n.Dir, v), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(n.Dir, v, "pod.yaml"), pod(v, sleeping))
	}
	if err := os.Symlink("../v1/pod.yaml", filepath.Join(dir, "linked.yaml")); err != nil {
		t.Fatal(err)
	}
	n.waitReady("v1")
	if err := os.Symlink("../v2/pod.yaml", filepath.Join(dir, ".linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, ".linked"), filepath.Join(dir, "linked.yaml")); err != nil {
		t.Fatal(err)
	}
	n.waitReady("v2")
	n.waitGone("v1")
}

// TestUnsupportedIsRefused names what this version does not do instead of ignoring it.
func TestUnsupportedIsRefused(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("u.yaml", pod("u", "\n  volumes: [{name: v, flocker: {datasetName: x}}]"+sleeping))
	n.logHas("u.yaml", "spec.volumes[0].flocker")
	if n.pod("u") != nil {
		t.Error("the pod was accepted")
	}
}

// TestManifestURL runs a pod that a web server asks for, and keeps it while the server fails.
func TestManifestURL(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() || r.Header.Get("X-Node") != "one" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(pod("remote", sleeping)))
	}))
	defer server.Close()
	n := startNode(t, "--manifest-url="+server.URL+"/node.yaml", "--manifest-url-header=X-Node: one")
	before := n.waitReady("remote")
	broken.Store(true)
	n.stop()
	n.start()
	n.logHas(server.URL+"/node.yaml", "403 Forbidden")
	n.requireSame(before, n.waitReady("remote"))
	n.stop()
	n.args = nil
	n.start()
	n.waitGone("remote")
	n.requireNoPods()
}
