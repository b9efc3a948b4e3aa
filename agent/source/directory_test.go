package source

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/source/manifest"
)

func TestDirectoryComesLater(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "etc/berth/manifests")
	h := start(t, dir, nil)
	h.waitProblem("manifests", "directory is missing")
	must(t, os.MkdirAll(dir, 0o755))
	h.write("a.yaml", podYAML("a", "nginx:1"))
	h.waitImage("a", "nginx:1")
	if p := h.src.Problems(); len(p) > 0 {
		t.Errorf("problems: %+v", p)
	}
}

func TestDirectoryGoesAndReturns(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"removed":        os.RemoveAll,
		"moved away":     func(dir string) error { return os.Rename(dir, dir+"-old") },
		"parent removed": func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goesAndReturns(t, name, remove)
		})
	}
}

func goesAndReturns(t *testing.T, name string, remove func(dir string) error) {
	dir := filepath.Join(t.TempDir(), "etc", "manifests")
	fill := func(names ...string) {
		must(t, os.MkdirAll(dir, 0o755))
		for _, n := range names {
			must(t, os.WriteFile(filepath.Join(dir, n+".yaml"), []byte(podYAML(n, "nginx:1")), 0o600))
		}
	}
	fill("a", "b", "c")
	// Files that go one after the other with a longer pause between them are files that were removed. A busy machine
	// makes such pauses.
	const quiet = 5 * time.Second // what a directory that comes back is given
	h := start(t, dir, func(c *Config) { c.Quiet = quiet })
	h.wait("3 pods", func() bool { return len(h.pods) == 3 })
	unchanged := func(when string) {
		t.Helper()
		time.Sleep(quiet + goneLimit)
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.pods) != 3 || len(h.history) != 3 {
			t.Fatalf("%s: pods have changed: %v", when, h.history)
		}
	}
	must(t, remove(dir))
	h.waitProblem("manifests", "directory is missing")
	unchanged("the directory is " + name)
	fill("a", "b", "c")
	h.wait("back", func() bool { return len(h.src.Problems()) == 0 || h.nudge() })
	unchanged("the directory was " + name + " and is back with the same content")
	must(t, os.Rename(dir, dir+"x"))
	h.waitProblem("manifests", "directory is missing")
	fill("a")
	h.wait("only what the new directory holds", func() bool { return len(h.pods) == 1 })
}

// nudge lets a wait look again although nothing came from the source.
func (h *harness) nudge() bool {
	time.AfterFunc(time.Millisecond, h.cond.Broadcast)
	return false
}

func TestRescan(t *testing.T) {
	h := start(t, t.TempDir(), func(c *Config) { c.Rescan = 20 * time.Millisecond })
	h.write("a.yaml", podYAML("a", "nginx:1"))
	h.waitImage("a", "nginx:1")
	h.flush() // a look at a.yaml that is due anyway would find the change, too
	// A write by another name of the file is told to whoever watches that name's directory.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(filepath.Join(h.dir, "a.yaml"), other); err != nil {
		t.Skip("temporary directories are on two file systems")
	}
	must(t, os.WriteFile(other, []byte(podYAML("a", "nginx:2")), 0o600))
	h.waitImage("a", "nginx:2")
	// Cutting the file and filling it again may be seen as two changes.
	if h.src.Missed() == 0 {
		t.Error("a change that nobody was told of is not counted")
	}
}

func TestConflict(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("b.yaml", podYAML("web", "nginx:b"))
	h.waitImage("web", "nginx:b")
	h.write("a.yaml", podYAML("web", "nginx:a"))
	p := h.waitProblem("a.yaml", "Duplicate value", `"web"`, "b.yaml", "a.yaml")
	if p.Pod != "default/web-node1" {
		t.Errorf("%+v", p)
	}
	h.write("b.yaml", podYAML("web", "nginx:b2"))
	h.waitImage("web", "nginx:b2")
	h.remove("b.yaml")
	h.waitImage("web", "nginx:a")
	if p := h.src.Problems(); len(p) > 0 {
		t.Errorf("problems: %+v", p)
	}
	h.write("twice.yaml", podYAML("x", "nginx:1")+"---\n"+podYAML("x", "nginx:2"))
	h.waitImage("x", "nginx:1")
	h.waitProblem("twice.yaml", "line 13: metadata.name: Duplicate value")
}

func TestInvalidKeepsPod(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	good := podYAML("web", "nginx:1")
	for bad, want := range map[string]string{
		strings.Replace(good, "image: nginx:1", "image: ''", 1): "line 8: spec.containers[0].image: Required value",
		strings.Replace(good, "image: nginx:1", "image: 5",
			1): `line 8: spec.containers[0].image: Invalid value: 5: must be a string: put quotes around it, as in "5"`,
		strings.Replace(good, "image:", "\timage:", 1): "invalid YAML",
		good[:len(good)/2]: "",
		"":                 "file is empty",
		strings.Replace(good, "kind: Pod", "kind: Pd", 1): `line 2: kind: Invalid value: "v1 Pd": not supported: must be Pod`,
		good + "---\nfoo\n": "a manifest must be a map",
		strings.Replace(good, "name: web", "name: we_b",
			1): "line 4: metadata.name: Invalid value",
		strings.Replace(good, "name: web", "name: web\n  annotations: {kubernetes.io/config.mirror: abc}",
			1): "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: it marks the copy",
		strings.Replace(good, "spec:", "spec:\n  schedulingGates: [{name: x}]",
			1): "line 6: spec.schedulingGates: Forbidden: a static pod is not scheduled",
		good + "    volumeDevices: [{name: x, devicePath: " +
			"/dev/x}]\n": "spec.containers[0].volumeDevices",
		strings.Replace(good, "  containers:", "  volumes: [{name: v, flocker: {datasetName: x}}]\n  containers:",
			1): "spec.volumes[0].flocker: Forbidden",
	} {
		h.write("a.yaml", good)
		h.waitImage("web", "nginx:1")
		h.wait("problems gone", func() bool { return len(h.src.Problems()) == 0 || h.nudge() })
		h.write("a.yaml", bad)
		h.waitProblem("a.yaml", want)
	}
	if h.changes("web") != 1 {
		t.Errorf("the pod changed: %v", h.history)
	}
	// The good document of a bad file counts, and none of the others goes.
	h.write("a.yaml", good+"---\n"+podYAML("two", "nginx:1"))
	h.waitImage("two", "nginx:1")
	h.write("a.yaml", podYAML("two", "nginx:2")+"---\nnonsense: [")
	h.waitImage("two", "nginx:2")
	h.flush()
	if h.uid("web") == "" {
		t.Error("a pod went with a bad file")
	}
	h.write("a.yaml", podYAML("two", "nginx:2"))
	h.waitImage("web", "")
}

func TestRestart(t *testing.T) {
	dir, state := filepath.Join(t.TempDir(), "m"), t.TempDir()
	must(t, os.Mkdir(dir, 0o755))
	keep := func(c *Config) { c.StateDir = state }
	h := start(t, dir, keep)
	for _, n := range []string{"same", "gone", "bad", "changed"} {
		h.write(n+".yaml", podYAML(n, "nginx:1"))
	}
	h.write("zz.yaml", podYAML("owned", "nginx:first"))
	h.waitImage("owned", "nginx:first")
	h.write("aa.yaml", podYAML("owned", "nginx:second"))
	h.waitProblem("aa.yaml", "Duplicate value")
	h.wait("5 pods", func() bool { return len(h.pods) == 5 })
	uids := map[string]string{}
	for k, p := range h.pods {
		uids[k] = string(p.UID)
	}
	h.wait("kept", func() bool { e, _ := os.ReadDir(state); return len(e) == 6 || h.nudge() })
	h.stop()

	h.remove("gone.yaml")
	h.write("bad.yaml", "kind: [")
	h.write("changed.yaml", podYAML("changed", "nginx:2"))
	must(t, os.WriteFile(filepath.Join(state, "torn.json"), []byte("{"), 0o600))
	must(t, os.Chtimes(filepath.Join(dir, "zz.yaml"), time.Now(), time.Now()))
	h = start(t, dir, keep)
	want := []string{"+bad-node1", "+changed-node1", "+owned-node1", "+same-node1"}
	var got []string
	for _, e := range h.history {
		got = append(got, strings.Fields(e)[0])
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("before Synced came %v, want %v", got, want)
	}
	for _, n := range []string{"bad", "same", "owned"} {
		if got := h.uid(n); string(got) != uids["default/"+n+"-node1"] {
			t.Errorf("%s has another UID after a restart", n)
		}
	}
	h.stop()

	// The directory is away while the agent starts.
	must(t, os.Rename(dir, dir+"x"))
	h = start(t, dir, keep)
	if len(h.pods) != 4 {
		t.Errorf("pods went with the directory: %v", h.history)
	}
	must(t, os.Rename(dir+"x", dir))
	h.wait("back", func() bool { return len(h.src.Problems()) == 2 || h.nudge() })
	h.write("same.yaml", podYAML("same", "nginx:3"))
	h.waitImage("same", "nginx:3")
	if len(h.history) != 5 {
		t.Errorf("changes: %v", h.history)
	}
}

// Random operations on the directory, and then what a plain reading of it says must be what the consumer knows.
func TestRandomOperations(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomOperations(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func randomOperations(t *testing.T, r *rand.Rand) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "m")
	must(t, os.Mkdir(dir, 0o755))
	h := start(t, dir, nil)
	at := func() string { return filepath.Join(dir, fmt.Sprintf("f%d.yaml", r.IntN(8))) }
	for i := range 150 {
		text := podYAML(fmt.Sprintf("p%d", r.IntN(8)), fmt.Sprintf("nginx:%d", i))
		if r.IntN(4) == 0 {
			text += "---\n" + podYAML(fmt.Sprintf("q%d", r.IntN(8)), fmt.Sprintf("nginx:%d", i))
		}
		// Operations may fail, on a file that is not there: that is one of the cases.
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			_ = os.WriteFile(at(), []byte(text), 0o600)
		case 4:
			tmp := filepath.Join(dir, ".tmp")
			_ = os.WriteFile(tmp, []byte(text), 0o600)
			_ = os.Rename(tmp, at())
		case 5, 6:
			_ = os.Remove(at())
		case 7:
			_ = os.Rename(at(), at())
		case 8:
			target := filepath.Join(parent, fmt.Sprintf("t%d", r.IntN(3)))
			_ = os.WriteFile(target, []byte(text), 0o600)
			_ = os.Symlink(target, at())
		case 9:
			_ = os.Link(at(), at())
		case 10:
			time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
		case 11:
			if r.IntN(4) == 0 {
				_ = os.RemoveAll(dir)
				_ = os.Mkdir(dir, 0o755)
			}
		}
	}
	// Nothing is wrong with any file now, but for conflicts; those are settled by whoever came first, so the set of
	// names is what can be compared, and the images of names claimed once.
	names, images := map[string]int{}, map[string]string{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		for _, d := range (&manifest.Reader{Node: "node1"}).Read(data, manifest.Place{Origin: desired.File}) {
			name := strings.TrimSuffix(d.Item.Pod.Name, "-node1")
			names[name]++
			images[name] = d.Item.Pod.Spec.Containers[0].Image
		}
	}
	h.wait(fmt.Sprintf("the same as %v", images), func() bool {
		if len(h.pods) != len(names) {
			return h.nudge()
		}
		for name, n := range names {
			if image := h.image(name); image == "" || n == 1 && image != images[name] {
				return h.nudge()
			}
		}
		return true
	})
}

// TestKernelsFile: a file of /proc says that it is a regular one, but to read /proc/kmsg is to wait until the kernel
// says something.
func TestKernelsFile(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	for name, target := range map[string]string{
		"kmsg.yaml": "/proc/kmsg", "type.yaml": "/sys/kernel/uevent_seqnum",
		"status.yaml": "/proc/self/status",
	} {
		must(t, os.Symlink(target, filepath.Join(h.dir, name)))
		if f, err := os.OpenFile(target, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
			h.waitProblem(name, "is a file of the kernel's own")
		}
	}
	h.write("a.yaml", podYAML("a", "nginx:1"))
	h.waitImage("a", "nginx:1")
}
