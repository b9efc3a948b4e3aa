package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/berth-node/berth/install/release"
)

// TestLookAtPackage: what dpkg would refuse, or what is no berth, is refused before the agent is stopped.
func TestLookAtPackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg is not here")
	}
	dir := t.TempDir()
	build := func(name, arch string) string {
		tree, file := filepath.Join(dir, name+arch), filepath.Join(dir, name+arch+".deb")
		control := fmt.Sprintf("Package: %s\nVersion: 1.2\nArchitecture: %s\nMaintainer: somebody\nDescription: something\n", name, arch)
		for path, text := range map[string]string{"DEBIAN/control": control, "usr/bin/berth": strings.Repeat("program", 10000)} {
			path = filepath.Join(tree, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return file
	}
	look := func(file string) (string, error) {
		return lookAtPackage(t.Context(), &release.Release{Kind: release.Deb, File: file})
	}
	good := build("berth", goruntime.GOARCH)
	if version, err := look(good); err != nil || version != "1.2" {
		t.Errorf("%q, %v", version, err)
	}
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(dir, "torn.deb")
	if err := os.WriteFile(torn, data[:len(data)-20000], 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		torn: "look at what the package has", build("ship", goruntime.GOARCH): "a package of ship", build("berth", "s390x"): "another machine",
	} {
		if version, err := look(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, not %q", file, version, err, want)
		}
	}
}
