package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/rootfs"
)

const passwdOfTest = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nbad:x:one:1::/bad:\nnone:x:7:7:::\n" +
	"app:x:1000:1000::/home/app:/bin/sh\nagain:x:1000:1000::/home/again:/bin/sh\n"

// TestHome looks for homes in files that a container has by its image or by a mount, and in what is no file.
func TestHome(t *testing.T) {
	put := func(path, text string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir := t.TempDir()
	image, empty := filepath.Join(dir, "image"), filepath.Join(dir, "empty")
	put(filepath.Join(image, "etc/passwd"), passwdOfTest)
	file := put(filepath.Join(dir, "file"), "root:x:0:0::/of/file:\n")
	put(filepath.Join(dir, "volume/passwd"), "root:x:0:0::/of/volume:\n")
	put(filepath.Join(empty, "etc/other"), "")
	fifo, led, leads, huge := filepath.Join(dir, "fifo"), filepath.Join(dir, "led"), filepath.Join(dir, "leads"),
		filepath.Join(dir, "huge")
	put(filepath.Join(fifo, "etc/other"), "")
	if err := unix.Mkfifo(filepath.Join(fifo, "etc/passwd"), 0o666); err != nil {
		t.Fatal(err)
	}
	put(filepath.Join(led, "etc/other"), "root:x:0:0::/of/other:\n")
	put(filepath.Join(leads, "etc/other"), "")
	for link, to := range map[string]string{led: "/etc/other", leads: file} {
		if err := os.Symlink(to, filepath.Join(link, "etc/passwd")); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(huge, "etc/passwd"), strings.Repeat("x", rootfs.MaxFile+1)+"\n"+passwdOfTest)
	bind := func(source, destination string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: destination}
	}
	for name, c := range map[string]struct {
		root   string
		uid    uint32
		env    []string
		mounts []specs.Mount
		want   string
	}{
		"of the environment": {root: image, env: []string{"HOME=/a", "HOME=/b"}, want: "/b"},
		"empty there":        {root: image, env: []string{"HOME=/a", "HOME="}, want: "/root"},
		"of the image":       {root: image, want: "/root"},
		"first line counts":  {root: image, uid: 1000, want: "/home/app"},
		"without a line":     {root: image, uid: 5, want: "/"},
		"without a home":     {root: image, uid: 7, want: "/"},
		"without a file":     {root: empty, want: "/"},
		"without a root":     {root: filepath.Join(dir, "nowhere"), want: "/"},
		"FIFO":               {root: fifo, want: "/"},
		"endless line":       {root: huge, want: "/"},
		"link":               {root: led, want: "/of/other"},
		"link out of it":     {root: leads, want: "/"},
		"mount of a file":    {root: fifo, mounts: []specs.Mount{bind(file, "/etc/passwd")}, want: "/of/file"},
		"mount of a directory": {
			root: image, mounts: []specs.Mount{bind(filepath.Join(dir, "volume"), "/etc/")}, want: "/of/volume",
		},
		"mount of a FIFO": {
			root: image, mounts: []specs.Mount{bind(filepath.Join(fifo, "etc/passwd"), "/etc/passwd")}, want: "/",
		},
		"mount with a FIFO": {
			root: image, mounts: []specs.Mount{bind(filepath.Join(fifo, "etc"), "/etc")}, want: "/",
		},
		"mount of the root": {root: fifo, mounts: []specs.Mount{bind(image, "/")}, want: "/root"},
		"empty mount":       {root: image, mounts: []specs.Mount{{Type: "tmpfs", Destination: "/etc"}}, want: "/"},
		"mount that covers one": {
			root: image, mounts: []specs.Mount{
				bind(file, "/etc/passwd"), bind(filepath.Join(empty, "etc"), "/etc"),
			}, want: "/",
		},
		"other mounts": {
			root: image, mounts: []specs.Mount{bind(file, "/etc/passwd2"), bind(file, "/et")}, want: "/root",
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &specs.Spec{
				Process: &specs.Process{Env: slices.Clone(c.env), User: specs.User{UID: c.uid}}, Mounts: c.mounts,
			}
			setHome(spec, c.root)
			if env := spec.Process.Env; len(env) == 0 || env[len(env)-1] != "HOME="+c.want {
				t.Errorf("environment is %q, want home %s", env, c.want)
			}
		})
	}
}
