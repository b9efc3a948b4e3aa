package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sassoftware/go-rpmutils"
)

// tree lays out files as an installation has them.
func tree(t *testing.T) *job {
	t.Helper()
	j := &job{product: named(t, "berth"), tree: t.TempDir(), out: t.TempDir(), version: "v1.2.3", arch: "amd64", time: time.Unix(1_700_000_000, 0).UTC()}
	for path, mode := range map[string]fs.FileMode{
		"usr/bin/berth": 0o755, "usr/libexec/berth/berth-helper": 0o755, "usr/lib/systemd/system/berth.service": 0o644,
		"usr/share/doc/berth/examples/90-berth.conf": 0o644, "usr/share/bash-completion/completions/berth": 0o644,
		"usr/share/zsh/vendor-completions/_berth": 0o644,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(j.tree, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(j.tree, path), []byte(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

func named(t *testing.T, name string) product {
	t.Helper()
	p, err := productOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func build(t *testing.T, format string) (j *job, path string) {
	t.Helper()
	return pack(t, tree(t), format)
}

func pack(t *testing.T, j *job, format string) (*job, string) {
	t.Helper()
	all, err := j.files()
	if err != nil {
		t.Fatal(err)
	}
	if err := j.pack(format, all); err != nil {
		t.Fatal(err)
	}
	made, _ := filepath.Glob(filepath.Join(j.out, "*."+format))
	if len(made) != 1 {
		t.Fatalf("made are %v", made)
	}
	return j, made[0]
}

// own are the directories that only berth has files in.
var own = []string{"/usr/libexec/berth", "/usr/share/doc/berth", "/usr/share/doc/berth/examples"}

// TestRPM: rpm removes at the end what the package names: its files, the directories that are its own, those of shells
// that may not be there, and none that every machine has.
func TestRPM(t *testing.T) {
	_, path := build(t, "rpm")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := rpmutils.ReadRpm(f)
	if err != nil {
		t.Fatal(err)
	}
	infos, err := r.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	var dirs, files []string
	for _, i := range infos {
		if i.UserName() != "root" || i.GroupName() != "root" {
			t.Errorf("%s is %s's of %s", i.Name(), i.UserName(), i.GroupName())
		}
		// Bits as stat(2) has them: S_IFDIR is 040000.
		if i.Mode()&0o170000 == 0o040000 {
			dirs = append(dirs, i.Name())
			if perm := i.Mode() & 0o7777; perm != 0o755 {
				t.Errorf("%s has mode %o", i.Name(), perm)
			}
			continue
		}
		files = append(files, i.Name())
	}
	slices.Sort(dirs)
	slices.Sort(files)
	wantDirs := append([]string{
		"/usr/share/bash-completion", "/usr/share/bash-completion/completions", "/usr/share/zsh", "/usr/share/zsh/site-functions",
	}, own...)
	slices.Sort(wantDirs)
	if !slices.Equal(dirs, wantDirs) {
		t.Errorf("its directories are %q, not %q", dirs, wantDirs)
	}
	want := []string{
		"/usr/bin/berth", "/usr/lib/systemd/system/berth.service", "/usr/libexec/berth/berth-helper",
		"/usr/share/bash-completion/completions/berth", "/usr/share/doc/berth/examples/90-berth.conf", "/usr/share/zsh/site-functions/_berth",
	}
	if !slices.Equal(files, want) {
		t.Errorf("its files are %q, not %q", files, want)
	}
}

// TestDeb: dpkg removes a directory with the last package that has it, so that all of them are named.
func TestDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not here")
	}
	_, path := build(t, "deb")
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range own {
		if strings.Count(string(out), " ."+dir+"/\n") != 1 {
			t.Errorf("%s is not there once:\n%s", dir, out)
		}
	}
	if !strings.Contains(string(out), "./usr/share/zsh/vendor-completions/_berth\n") {
		t.Errorf("the completion of zsh is elsewhere:\n%s", out)
	}
}

// TestScripts has a shell read what the packagers run.
func TestScripts(t *testing.T) {
	for _, product := range []string{"berth", "berth-control"} {
		for name, text := range named(t, product).scripts {
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s of %s: %v: %s", name, product, err, out)
			}
		}
	}
	if _, err := productOf("other"); err == nil {
		t.Error("there is a package of another name")
	}
}

// TestControlPackage: the control plane is a package of its own, with what is its own, and the same bytes twice.
func TestControlPackage(t *testing.T) {
	j := &job{product: named(t, "berth-control"), tree: t.TempDir(), out: t.TempDir(), version: "v1.2.3", arch: "amd64", time: time.Unix(1_700_000_000, 0).UTC()}
	for path, mode := range map[string]fs.FileMode{
		"usr/bin/berth-control": 0o755, "usr/lib/systemd/system/berth-control.service": 0o644, "usr/lib/sysusers.d/berth-control.conf": 0o644,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(j.tree, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(j.tree, path), []byte(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	var before []byte
	for range 2 {
		_, path := pack(t, j, "deb")
		if want := "berth-control_1.2.3_amd64.deb"; filepath.Base(path) != want {
			t.Errorf("it is %s, not %s", path, want)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && string(before) != string(data) {
			t.Error("it is another one the second time")
		}
		before = data
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", path).Output(); err == nil {
			if strings.Count(string(out), "\n") < 3 || !strings.Contains(string(out), "./usr/bin/berth-control\n") || strings.Contains(string(out), "./etc") {
				t.Errorf("it has\n%s", out)
			}
		}
	}
	if got := j.name(); got != "berth-control_1.2.3_amd64" {
		t.Errorf("its tarball is %s", got)
	}
}
