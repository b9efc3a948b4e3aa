package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree is every file below a directory with its content and mode, and every directory.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		text := st.Mode().String()
		if st.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(data)
		}
		out[strings.TrimPrefix(path, root)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func setUp(t *testing.T, l Layout) (*Installation, []File, Programs) {
	t.Helper()
	dir := t.TempDir()
	p := Beside(dir)
	for _, path := range []string{p.Berth, p.Helper, p.Wasm} {
		write(t, path, "program "+filepath.Base(path))
	}
	docs := Documents{Man: []Document{{"berth.1", []byte("manual")}}, Bash: []Document{{"berth", []byte("completion")}}}
	return &Installation{Root: t.TempDir(), Layout: l}, l.Files(p, docs, "--log-level", "debug"), p
}

func kinds(t *testing.T, i *Installation, files []File) map[Kind]int {
	t.Helper()
	all, err := i.Plan(files)
	must(t, err)
	out := map[Kind]int{}
	for _, c := range all {
		out[c.Kind]++
	}
	return out
}

func TestInstallAndRemove(t *testing.T) {
	for name, l := range map[string]Layout{"packaged": Packaged(), "local": Local()} {
		t.Run(name, func(t *testing.T) {
			i, files, _ := setUp(t, l)
			must(t, os.MkdirAll(i.at("/etc/systemd"), 0o755)) // a directory that was there stays
			before := tree(t, i.Root)
			if k := kinds(t, i, files); k[Create] != len(files) {
				t.Errorf("plan is %v", k)
			}
			must(t, i.Apply(files))
			for _, f := range files {
				st, err := os.Stat(i.at(f.Path))
				if err != nil || st.Mode().Perm() != f.Mode {
					t.Errorf("%s: %v, %v", f.Path, st, err)
				}
			}
			unit, err := os.ReadFile(i.at(l.Units + "/berth.service"))
			if err != nil || !strings.Contains(string(unit), "ExecStart="+l.Bin+"/berth agent --log-level debug\n") {
				t.Errorf("%v: %s", err, unit)
			}
			after := tree(t, i.Root)
			if k := kinds(t, i, files); k[Keep] != len(files) {
				t.Errorf("plan of a second time is %v", k)
			}
			must(t, i.Apply(files))
			if again := tree(t, i.Root); !same(after, again) {
				t.Errorf("a second time changes something: %v", again)
			}
			out, err := i.Remove()
			must(t, err)
			if len(out.Files) != len(files) || len(out.Kept) > 0 {
				t.Errorf("removed %v", out)
			}
			if left := tree(t, i.Root); !same(before, left) {
				t.Errorf("left: %v", left)
			}
			_, err = i.Remove()
			must(t, err)
		})
	}
}

func same(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// TestOthersFiles: what somebody else has put there comes back, and what somebody has changed since is not lost.
func TestOthersFiles(t *testing.T) {
	i, files, p := setUp(t, Local())
	sysctl, unit := i.at("/etc/sysctl.d/90-berth.conf"), i.at("/etc/systemd/system/berth.service")
	write(t, sysctl, "theirs")
	before := tree(t, i.Root)
	if k := kinds(t, i, files); k[Foreign] != 1 {
		t.Errorf("plan is %v", k)
	}
	must(t, i.Apply(files))
	write(t, unit, "edited")
	write(t, p.Berth, "a later program")
	if k := kinds(t, i, files); k[Edited] != 1 || k[Replace] != 1 {
		t.Errorf("plan is %v", k)
	}
	must(t, i.Apply(files))
	if data, err := os.ReadFile(unit + EditedSuffix); err != nil || string(data) != "edited" {
		t.Errorf("of the edit there is %q, %v", data, err)
	}
	must(t, os.Remove(unit+EditedSuffix))
	modules := i.at("/etc/modules-load.d/berth.conf")
	write(t, modules, "mine")
	out, err := i.Remove()
	must(t, err)
	if out.Kept["/etc/modules-load.d/berth.conf"] == "" || len(out.Files) != len(files)-1 {
		t.Errorf("removed %v", out)
	}
	must(t, os.Remove(modules))
	must(t, os.Remove(filepath.Dir(modules)))
	if left := tree(t, i.Root); !same(before, left) {
		t.Errorf("left: %v", left)
	}
}

// TestRemovalKilled: a removal that was killed after any file is finished by the next, for which the program is there
// until all else is gone.
// TestSetAsideTwice: a file that was set aside before, and left where it was, is not what the next one is lost for.
func TestSetAsideTwice(t *testing.T) {
	i, files, _ := setUp(t, Local())
	conf := i.at("/etc/sysctl.d/90-berth.conf")
	write(t, conf, "theirs")
	must(t, i.Apply(files))
	write(t, conf, "changed since") // so that the removal leaves both
	_, err := i.Remove()
	must(t, err)
	write(t, conf+ForeignSuffix+".1", "somebody's")
	must(t, i.Apply(files))
	must(t, i.Apply(files))
	for path, want := range map[string]string{
		conf + ForeignSuffix: "changed since", conf + ForeignSuffix + ".1": "somebody's", conf + ForeignSuffix + ".2": "theirs",
	} {
		if has, err := os.ReadFile(path); err != nil || string(has) != want {
			t.Errorf("%s: %q, %v, want %q", path, has, err, want)
		}
	}
	_, err = i.Remove()
	must(t, err)
	if has, err := os.ReadFile(conf); err != nil || string(has) != "changed since" {
		t.Errorf("after the removal: %q, %v", has, err)
	}
}

func TestRemovalKilled(t *testing.T) {
	i, files, _ := setUp(t, Packaged())
	for n := range len(files) {
		i.Root = t.TempDir()
		before := tree(t, i.Root)
		must(t, i.Apply(files))
		r, err := i.read()
		must(t, err)
		all := i.inOrder(r)
		if len(all) != len(files) {
			t.Fatalf("of %d files %d are removed", len(files), len(all))
		}
		for _, path := range all[:n] {
			must(t, i.takeAway(path, true))
		}
		if _, err := os.Stat(i.at(filepath.Join(i.Layout.Bin, "berth"))); err != nil {
			t.Errorf("after %d files of %d: %v", n, len(files), err)
		}
		_, err = i.Remove()
		must(t, err)
		if left := tree(t, i.Root); !same(before, left) {
			t.Errorf("after %d files and again there is %v", n, left)
		}
	}
}

// TestKilled: an installation that was killed after any file is finished by the next, or taken back.
func TestKilled(t *testing.T) {
	i, files, _ := setUp(t, Packaged())
	for n := range len(files) + 1 {
		for _, then := range []string{"again", "remove"} {
			i.Root = t.TempDir()
			// The last file is where another one was before.
			foreign := files[len(files)-1].Path
			write(t, i.at(foreign), "theirs")
			before := tree(t, i.Root)
			r, err := i.read()
			must(t, err)
			for _, f := range files {
				data, err := f.content()
				must(t, err)
				r.Files[f.Path] = []string{digest(data)}
				r.Dirs = append(r.Dirs, i.missing(filepath.Dir(f.Path))...)
			}
			r.Foreign[foreign] = digest([]byte("theirs"))
			must(t, os.MkdirAll(filepath.Dir(i.RecordPath()), 0o755))
			must(t, i.write(r))
			for _, f := range files[:n] {
				data, err := f.content()
				must(t, err)
				kind := Create
				if f.Path == foreign {
					kind = Foreign
				}
				must(t, i.put(Change{f, kind, data}))
			}
			if n < len(files) {
				must(t, os.MkdirAll(filepath.Dir(i.at(files[n].Path)), 0o755))
				if files[n].Path == foreign {
					must(t, setAside(i.at(foreign), Foreign))
				}
				write(t, i.at(files[n].Path)+".new", "half")
			}
			if then == "again" {
				must(t, i.Apply(files))
				if k := kinds(t, i, files); k[Keep] != len(files) {
					t.Errorf("after %d files and again: %v", n, k)
				}
			}
			_, err = i.Remove()
			must(t, err)
			if left := tree(t, i.Root); !same(before, left) {
				t.Errorf("after %d files, %s and removal there is %v", n, then, left)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	i, files, p := setUp(t, Packaged())
	must(t, os.MkdirAll(i.at("/usr/bin"), 0o755))
	must(t, os.Symlink("/bin/sh", i.at("/usr/bin/berth")))
	if err := i.Apply(files); err == nil || !strings.Contains(err.Error(), "/usr/bin/berth") {
		t.Errorf("a link: %v", err)
	}
	must(t, os.Remove(i.at("/usr/bin/berth")))
	must(t, os.Truncate(p.Wasm, 0))
	if err := i.Apply(files); err == nil || !strings.Contains(err.Error(), "berth-wasm") {
		t.Errorf("an empty program: %v", err)
	}
	write(t, p.Wasm, "x")
	for _, text := range []string{"", "{", `{"version":2}`, "[]", "null"} {
		write(t, i.RecordPath(), text)
		if err := i.Apply(files); (err == nil) != (text == "null") || err != nil && !strings.Contains(err.Error(), i.RecordPath()) {
			t.Errorf("a record %q: %v", text, err)
		}
	}
}

// TestReasons: each file says what it is for, and no two are at one place.
func TestReasons(t *testing.T) {
	_, files, _ := setUp(t, Packaged())
	var paths []string
	for _, f := range files {
		if f.What == "" || !strings.HasPrefix(f.Path, "/usr/") {
			t.Errorf("%+v", f)
		}
		paths = append(paths, f.Path)
	}
	if len(slices.Compact(paths)) != len(files) {
		t.Errorf("paths are %v", paths)
	}
}

// TestOwn: what somebody else has put there for us is removed with the rest, and what was there before that is not
// taken for an edit.
func TestOwn(t *testing.T) {
	i, files, _ := setUp(t, Local())
	before := tree(t, i.Root)
	must(t, i.Own(map[string]string{"/x": digest(nil)}, false))
	if left := tree(t, i.Root); !same(before, left) {
		t.Errorf("where nothing is installed something is recorded: %v", left)
	}
	must(t, i.Apply(files))
	berth, more := "/usr/local/bin/berth", "/usr/local/share/berth/more"
	must(t, i.Own(map[string]string{berth: digest([]byte("new")), more: digest([]byte("more"))}, false))
	if k := kinds(t, i, files); k[Keep] != len(files) {
		t.Errorf("before it is there: %v", k)
	}
	unit := "/etc/systemd/system/berth.slice"
	write(t, i.at(unit), "edited")
	must(t, i.Own(map[string]string{unit: digest([]byte("unit"))}, false))
	if b, err := os.ReadFile(i.at(unit) + EditedSuffix); err != nil || string(b) != "edited" {
		t.Errorf("what somebody has changed is %q, %v", b, err)
	}
	must(t, os.Remove(i.at(unit)+EditedSuffix))
	must(t, os.Remove(i.at(unit))) // the link to it, too
	write(t, i.at(unit), "unit")
	write(t, i.at(berth), "new")
	write(t, i.at(more), "more")
	if k := kinds(t, i, files); k[Replace] != 2 {
		t.Errorf("when it is there: %v", k)
	}
	must(t, i.Own(map[string]string{berth: digest([]byte("new"))}, true))
	_, err := i.Remove()
	must(t, err)
	if left := tree(t, i.Root); !same(before, left) {
		t.Errorf("left: %v", left)
	}
}
