package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestStageWire(t *testing.T) {
	dev := specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}}
	group := specs.Mount{Destination: cgroupRoot, Type: "cgroup", Source: "cgroup", Options: []string{"ro"}}
	for _, want := range []stage{
		{Dir: "/s"},
		{
			Dir: "/s", Dev: &dev, OnDev: []specs.Mount{{
				Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"gid=5"},
			}}, Cgroup: &group,
			Sys: &specs.Mount{
				Destination: sysRoot, Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "rw"},
			},
			Trees: []cgroups.Mount{{
				Mountpoint: "/sys/fs/cgroup/cpu", Root: "/",
				Subsystems: []string{"cpu", "cpuacct"},
			}},
			Files: []fileBind{{"/a", "/r/etc/hosts", true}, {"/b", "/r/etc/hostname", false}},
		},
	} {
		got, err := decodeStage(want.encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	for _, bad := range []string{"", "dir\x00/s", "other\x00\x00\x00\x00\x00"} {
		if got, err := decodeStage([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v", bad, got)
		}
	}
}

// TestTakeFiles looks at which mounts are done before all others: only those of files, that are not in the way of
// another.
func TestTakeFiles(t *testing.T) {
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(dst string, options ...string) specs.Mount {
		return specs.Mount{
			Destination: dst, Type: "bind", Source: source, Options: append([]string{"rbind", "rprivate"}, options...),
		}
	}
	proc := specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"}
	volume := specs.Mount{
		Destination: "/etc", Type: "bind", Source: t.TempDir(), Options: []string{"rbind", "rprivate", "rw"},
	}
	mapped := file("/etc/b", "rw")
	mapped.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
	tests := map[string]struct {
		mounts      []specs.Mount
		taken, left []string
	}{
		"there is one, and there is none": {
			[]specs.Mount{proc, file("/etc/a", "rw"), file("/etc/b", "ro")},
			[]string{"/etc/a", "/etc/b"},
			[]string{"/proc"},
		},
		"what comes later": {
			[]specs.Mount{file("/etc/b", "rw"), volume}, []string{"/etc/b"}, []string{"/etc"},
		},
		"a volume before it": {
			[]specs.Mount{volume, file("/etc/b", "rw")}, nil, []string{"/etc", "/etc/b"},
		},
		"a link in the place": {
			[]specs.Mount{file("/etc/link", "rw"), file("/etc/b", "rw")}, []string{"/etc/b"}, []string{"/etc/link"},
		},
		"a link on the way":        {[]specs.Mount{file("/lib/b", "rw")}, nil, []string{"/lib/b"}},
		"a way out":                {[]specs.Mount{file("/etc/../../b", "rw")}, []string{"/etc/../../b"}, nil},
		"a directory in the place": {[]specs.Mount{file("/etc", "rw")}, nil, []string{"/etc"}},
		"no directory":             {[]specs.Mount{file("/none/b", "rw")}, nil, []string{"/none/b"}},
		"ids of its own":           {[]specs.Mount{mapped}, nil, []string{"/etc/b"}},
		"mounts that travel": {
			[]specs.Mount{{Destination: "/etc/b", Type: "bind", Source: source, Options: []string{"rbind", "rslave"}}},
			nil,
			[]string{"/etc/b"},
		},
		"an option that others know about": {[]specs.Mount{file("/etc/b", "noatime")}, nil, []string{"/etc/b"}},
		"below /dev": {
			[]specs.Mount{file("/dev/termination-log", "rw")}, nil, []string{"/dev/termination-log"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "etc/a"), []byte("kept"), 0o644); err != nil {
				t.Fatal(err)
			}
			for link, target := range map[string]string{"etc/link": "a", "lib": "etc"} {
				if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
					t.Fatal(err)
				}
			}
			files, rest := takeFiles(test.mounts, root)
			var taken, left []string
			for _, f := range files {
				if fi, err := os.Lstat(f.Target); err != nil || !fi.Mode().IsRegular() {
					t.Errorf("place %s: %v", f.Target, err)
				}
				taken = append(taken, f.Target)
			}
			for _, m := range rest {
				left = append(left, m.Destination)
			}
			var want []string
			for _, w := range test.taken {
				want = append(want, filepath.Join(root, filepath.Join("/", w)))
			}
			if !reflect.DeepEqual(taken, want) || !reflect.DeepEqual(left, test.left) {
				t.Errorf("taken %q, left %q; want %q, %q", taken, left, want, test.left)
			}
			if b, err := os.ReadFile(filepath.Join(root, "etc/a")); err != nil || string(b) != "kept" {
				t.Errorf("a file of the root: got %q, %v", b, err)
			}
		})
	}
}
