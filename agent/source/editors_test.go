package source

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each editor saves in its own way; to the pod it is one change, and never a removal.
func TestEditors(t *testing.T) {
	editors := map[string]func(h *harness, text string){
		"in place": func(h *harness, text string) { h.write("a.yaml", text) },
		"atomic rename": func(h *harness, text string) {
			h.write(".a.yaml.tmp123", text)
			h.rename(".a.yaml.tmp123", "a.yaml")
		},
		"vim with a backup": func(h *harness, text string) {
			h.write("4913", "")
			h.remove("4913")
			h.write(".a.yaml.swp", "\x00binary")
			h.rename("a.yaml", "a.yaml~")
			h.write("a.yaml", text)
			h.remove("a.yaml~")
			h.remove(".a.yaml.swp")
		},
		"emacs": func(h *harness, text string) {
			must(h.t, os.Symlink("user@host.123", filepath.Join(h.dir, ".#a.yaml")))
			h.write("#a.yaml#", text)
			h.rename("a.yaml", "a.yaml~")
			h.write("a.yaml", text)
			h.remove("#a.yaml#")
			h.remove(".#a.yaml")
		},
		"sed": func(h *harness, text string) {
			h.write("sedAbC123", text)
			h.rename("sedAbC123", "a.yaml")
		},
		"remove and write": func(h *harness, text string) {
			h.remove("a.yaml")
			h.write("a.yaml", text)
		},
		"in pieces": func(h *harness, text string) {
			f, err := os.Create(filepath.Join(h.dir, "a.yaml"))
			must(h.t, err)
			// Every piece is a valid manifest, with another image.
			for _, part := range strings.SplitAfter(text, "\n") {
				_, err := f.WriteString(part)
				must(h.t, err)
				must(h.t, f.Sync())
			}
			must(h.t, f.Close())
		},
		"hard link": func(h *harness, text string) {
			other := filepath.Join(h.t.TempDir(), "new")
			must(h.t, os.WriteFile(other, []byte(text), 0o600))
			must(h.t, os.Remove(filepath.Join(h.dir, "a.yaml")))
			if err := os.Link(other, filepath.Join(h.dir, "a.yaml")); err != nil {
				h.t.Skip("temporary directories are on two file systems")
			}
		},
	}
	for name, save := range editors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// An editor that the machine keeps waiting is no other editor.
			h := start(t, t.TempDir(), func(c *Config) { c.Quiet = 5 * time.Second })
			h.write("a.yaml", podYAML("web", "nginx:0"))
			h.waitImage("web", "nginx:0")
			for i := 1; i <= 5; i++ {
				save(h, podYAML("web", fmt.Sprintf("nginx:%d", i)))
				h.waitImage("web", fmt.Sprintf("nginx:%d", i))
			}
			same := h.uid("web")
			save(h, podYAML("web", "nginx:5")+"# again\n")
			h.flush()
			if h.uid("web") != same || h.changes("web") != 6 {
				t.Errorf("%d changes for 6 versions: %v", h.changes("web"), h.history)
			}
			if p := h.src.Problems(); len(p) > 0 {
				t.Errorf("problems: %+v", p)
			}
		})
	}
}

// A writer that never closes its file is waited for; the file is read once it does.
func TestOpenForWriting(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	f, err := os.Create(filepath.Join(h.dir, "a.yaml"))
	must(t, err)
	_, err = f.WriteString(podYAML("web", "nginx:1"))
	must(t, err)
	h.flush()
	if h.uid("web") != "" {
		t.Error("read a file that is being written")
	}
	must(t, f.Close())
	h.waitImage("web", "nginx:1")
}

func TestRenamedManifest(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("a.yaml", podYAML("web", "nginx:1"))
	h.waitImage("web", "nginx:1")
	h.rename("a.yaml", "b.yaml")
	h.flush()
	if h.changes("web") != 1 {
		t.Errorf("the pod changed with the name of its file: %v", h.history)
	}
	h.remove("b.yaml")
	h.waitImage("web", "")
}

func TestOddNames(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("manifest", podYAML("web", "nginx:1"))
	h.waitImage("web", "nginx:1")
	h.write("manifest", podYAML("web", "nginx:2"))
	h.waitImage("web", "nginx:2")
	for _, ignored := range []string{".hidden.yaml", "#x.yaml#", "y.yaml~", "z.yaml.bak", "w.yaml.swp", "v.yaml.tmp"} {
		h.write(ignored, podYAML("ignored", "nginx:1"))
	}
	h.flush()
	if h.uid("ignored") != "" {
		t.Error("read an editor's file")
	}
}

func TestManyAtOnce(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	for i := range 100 {
		h.write(fmt.Sprintf("p%d.yaml", i), podYAML(fmt.Sprintf("p%d", i), "nginx:1"))
	}
	h.wait("100 pods", func() bool { return len(h.pods) == 100 })
	for i := range 30 {
		h.remove(fmt.Sprintf("p%d.yaml", i))
	}
	h.wait("70 pods", func() bool { return len(h.pods) == 70 })
	for i := range 100 {
		want := 1
		if i < 30 {
			want = 2
		}
		if n := h.changes(fmt.Sprintf("p%d", i)); n != want {
			t.Errorf("pod %d changed %d times, want %d", i, n, want)
		}
	}
	if n := h.src.Missed(); n != 0 {
		t.Errorf("missed %d changes", n)
	}
}

// configMap writes a version of a mounted ConfigMap: a directory, a link to it that is swapped, and a link for each
// key.
func configMap(t *testing.T, dir string, version int, files map[string]string) {
	t.Helper()
	real := fmt.Sprintf("..v%d", version)
	must(t, os.Mkdir(filepath.Join(dir, real), 0o755))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, real, name), []byte(text), 0o644))
	}
	must(t, os.Symlink(real, filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", version-1))))
}

func TestConfigMapMount(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, 1, map[string]string{"a.yaml": podYAML("a", "nginx:1"), "b.yaml": podYAML("b", "nginx:1")})
	h := start(t, dir, nil)
	h.waitImage("a", "nginx:1")
	for v := 2; v < 8; v++ {
		configMap(t, dir, v, map[string]string{
			"a.yaml": podYAML("a", fmt.Sprintf("nginx:%d", v)),
			"b.yaml": podYAML("b", "nginx:1"),
		})
		h.waitImage("a", fmt.Sprintf("nginx:%d", v))
	}
	h.flush()
	if h.changes("b") != 1 || h.changes("a") != 7 {
		t.Errorf("changes: %v", h.history)
	}
	// A key that goes leaves its link dangling for a moment, or for good; its pod goes with the link.
	configMap(t, dir, 8, map[string]string{"a.yaml": podYAML("a", "nginx:8")})
	h.waitProblem("b.yaml", "leads nowhere")
	h.remove("b.yaml")
	h.waitImage("b", "")
	h.waitImage("a", "nginx:8")
}

func TestDirectoryIsLink(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "manifests")
	must(t, os.Mkdir(filepath.Join(parent, "v1"), 0o755))
	must(t, os.WriteFile(filepath.Join(parent, "v1/a.yaml"), []byte(podYAML("a", "nginx:1")), 0o600))
	must(t, os.WriteFile(filepath.Join(parent, "v1/b.yaml"), []byte(podYAML("b", "nginx:1")), 0o600))
	must(t, os.Symlink("v1", dir))
	h := start(t, dir, nil)
	h.waitImage("a", "nginx:1")
	must(t, os.Mkdir(filepath.Join(parent, "v2"), 0o755))
	must(t, os.WriteFile(filepath.Join(parent, "v2/a.yaml"), []byte(podYAML("a", "nginx:2")), 0o600))
	must(t, os.Symlink("v2", dir+".new"))
	must(t, os.Rename(dir+".new", dir))
	h.waitImage("a", "nginx:2")
	h.waitImage("b", "")
	h.write("a.yaml", podYAML("a", "nginx:3"))
	h.waitImage("a", "nginx:3")
}

func TestLinkedFile(t *testing.T) {
	elsewhere := t.TempDir()
	target := filepath.Join(elsewhere, "target.yaml")
	must(t, os.WriteFile(target, []byte(podYAML("a", "nginx:1")), 0o600))
	h := start(t, t.TempDir(), nil)
	must(t, os.Symlink(target, filepath.Join(h.dir, "a.yaml")))
	h.waitImage("a", "nginx:1")
	must(t, os.WriteFile(target, []byte(podYAML("a", "nginx:2")), 0o600))
	h.waitImage("a", "nginx:2")
	must(t, os.WriteFile(target+".new", []byte(podYAML("a", "nginx:3")), 0o600))
	must(t, os.Rename(target+".new", target))
	h.waitImage("a", "nginx:3")
	must(t, os.Rename(elsewhere, elsewhere+"x"))
	h.waitProblem("a.yaml", "leads nowhere")
	must(t, os.Rename(elsewhere+"x", elsewhere))
	must(t, os.WriteFile(target, []byte(podYAML("a", "nginx:4")), 0o600))
	h.waitImage("a", "nginx:4")
	if p := h.src.Problems(); len(p) > 0 {
		t.Errorf("problems: %+v", p)
	}
}

func TestStrangeEntries(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	must(t, unix.Mkfifo(filepath.Join(h.dir, "fifo.yaml"), 0o600))
	must(t, os.Mkdir(filepath.Join(h.dir, "dir.yaml"), 0o755))
	must(t, os.Symlink("/dev/zero", filepath.Join(h.dir, "zero.yaml")))
	must(t, os.Symlink("loop.yaml", filepath.Join(h.dir, "loop.yaml")))
	h.write("binary.yaml", strings.Repeat("\x00\xff", 100))
	must(t, os.WriteFile(filepath.Join(h.dir, "sparse.yaml"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(h.dir, "sparse.yaml"), 1<<40))
	h.write("sparse.yaml2", "")
	h.write("empty.yaml", "")
	h.write("comment.yaml", "# nothing here\n---\n")
	h.write("ok.yaml", podYAML("ok", "nginx:1"))
	h.waitImage("ok", "nginx:1")
	h.waitProblem("fifo.yaml", "no regular file")
	h.waitProblem("dir.yaml", "is a directory")
	h.waitProblem("zero.yaml", "no regular file")
	h.waitProblem("loop.yaml", "symbolic links")
	h.waitProblem("binary.yaml", "invalid YAML")
	for _, p := range h.src.Problems() {
		if strings.HasSuffix(p.File, "empty.yaml") || strings.HasSuffix(p.File, "comment.yaml") {
			t.Errorf("%+v", p)
		}
	}
}
