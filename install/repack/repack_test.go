package repack

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), mode))
}

const control = `Package: ship
Version: 1.0+2.abc
Architecture: all
Maintainer: somebody
Description: something
 of more than
 .
 a line
`

// build makes a package, and the root of a machine that dpkg installs in.
func build(t *testing.T) (deb, root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, as dpkg does")
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg is not here")
	}
	tree, root := t.TempDir(), t.TempDir()
	must(t, os.Chmod(tree, 0o755))
	write(t, filepath.Join(tree, "DEBIAN/control"), control, 0o644)
	// Of scripts there is none: dpkg would want a shell in the root. It keeps all of these files the same way.
	write(t, filepath.Join(tree, "DEBIAN/md5sums"), "a9c449d4fa44e9e5a41c574ae55ce4d9  usr/bin/ship\n", 0o644)
	write(t, filepath.Join(tree, "usr/bin/ship"), "program", 0o755)
	write(t, filepath.Join(tree, "usr/share/ship/text"), "text", 0o644)
	write(t, filepath.Join(tree, "usr/share/doc/ship/left-out"), "by dpkg", 0o644)
	must(t, os.Symlink("ship", filepath.Join(tree, "usr/bin/boat")))
	deb = filepath.Join(t.TempDir(), "ship.deb")
	run(t, "dpkg-deb", "--root-owner-group", "--build", tree, deb)
	write(t, filepath.Join(root, "var/lib/dpkg/status"), "", 0o644)
	must(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg/info"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg/updates"), 0o755))
	run(t, "dpkg", "--root="+root, "--path-exclude=/usr/share/doc/*", "--install", deb)
	return deb, root
}

// fieldsOf are the lines of what a package says of itself, whose order is dpkg's.
func fieldsOf(t *testing.T, deb string) []string {
	t.Helper()
	lines := strings.Split(run(t, "dpkg-deb", "--field", deb), "\n")
	slices.Sort(lines)
	return lines
}

// TestMake has dpkg install what was made of what it has installed.
func TestMake(t *testing.T) {
	deb, root := build(t)
	p := Find(t.Context(), root, "ship")
	if p == nil || p.Version != "1.0+2.abc" || p.Arch != "all" {
		t.Fatalf("dpkg has %+v", p)
	}
	dir := t.TempDir()
	made, err := p.Make(t.Context(), "/usr/bin/ship", dir)
	must(t, err)
	if has, want := fieldsOf(t, made), fieldsOf(t, deb); !slices.Equal(has, want) {
		t.Errorf("the package says\n%q\nand not\n%q", has, want)
	}
	if again, err := p.Make(t.Context(), "/usr/bin/ship", dir); err != nil || again != made {
		t.Errorf("again it is %s, %v", again, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left in its directory: %v", left)
	}
	// Another version in its place, and it again.
	must(t, os.Remove(filepath.Join(root, "usr/bin/boat")))
	write(t, filepath.Join(root, "usr/bin/ship"), "another", 0o755)
	run(t, "dpkg", "--root="+root, "--install", made)
	if b, err := os.ReadFile(filepath.Join(root, "usr/bin/boat")); err != nil || string(b) != "program" {
		t.Errorf("installed again it is %q, %v", b, err)
	}
	if st, err := os.Stat(filepath.Join(root, "usr/share/ship/text")); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("a file of it is %v, %v", st, err)
	}
	if out := run(t, "dpkg", "--root="+root, "--verify", "ship"); out != "" {
		t.Errorf("dpkg finds %s", out)
	}
}

// TestNoPackage: what dpkg does not have, or has only the configuration of, is none.
func TestNoPackage(t *testing.T) {
	_, root := build(t)
	if p := Find(t.Context(), root, "boat"); p != nil {
		t.Errorf("there is %+v", p)
	}
	p := Find(t.Context(), root, "ship")
	must(t, os.Remove(filepath.Join(root, "usr/bin/ship")))
	if _, err := p.Make(t.Context(), "/usr/bin/ship", t.TempDir()); err == nil || !strings.Contains(err.Error(), "usr/bin/ship") {
		t.Errorf("without its program: %v", err)
	}
	run(t, "dpkg", "--root="+root, "--remove", "ship")
	if p := Find(t.Context(), root, "ship"); p != nil {
		t.Errorf("after its removal there is %+v", p)
	}
}

func TestFields(t *testing.T) {
	status := "Package: ship\nStatus: install ok installed\nConffiles:\n /etc/ship 0123\nVersion: 1\nDescription: a\n b\n\n"
	if got := fields(status); got != "Package: ship\nVersion: 1\nDescription: a\n b\n" {
		t.Errorf("fields are %q", got)
	}
}
