package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
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
			Root: []specs.Mount{
				{Destination: "/r/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "rw"}},
				{Destination: "/r/etc/hosts", Type: "bind", Source: "/a", Options: []string{"rbind", "rprivate", "ro"}},
			},
			Trees: []cgroups.Mount{{
				Mountpoint: "/sys/fs/cgroup/cpu", Root: "/",
				Subsystems: []string{"cpu", "cpuacct"},
			}},
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

// TestTake looks at which mounts are made before all that libcontainer makes: none that another one is in the way of.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bind := func(source, dst string, options ...string) specs.Mount {
		return specs.Mount{
			Destination: dst, Type: "bind", Source: source, Options: append([]string{"rbind", "rprivate"}, options...),
		}
	}
	file := func(dst string, options ...string) specs.Mount { return bind(source, dst, options...) }
	proc := specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"}
	dev := specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}
	sys := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"}
	tmp := specs.Mount{Destination: "/etc", Type: "tmpfs", Source: "tmpfs"}
	volume := bind(dir, "/etc", "rw")
	mapped := file("/etc/b", "rw")
	mapped.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
	tests := map[string]struct {
		mounts      []specs.Mount
		taken, left []string
	}{
		"all there is in most": {
			[]specs.Mount{proc, dev, sys, bind(dir, "/vol", "rw"), file("/etc/a", "rw"), file("/dev/log", "rw")},
			[]string{"/proc", "/sys", "/sys", "/vol", "/etc/a"},
			[]string{"/dev"},
		},
		"places that are not there": {
			[]specs.Mount{file("/none/b", "rw"), bind(dir, "/no/ne", "ro")}, []string{"/none/b", "/no/ne"}, nil,
		},
		"what comes later": {
			[]specs.Mount{file("/etc/b", "rw"), volume}, []string{"/etc/b"}, []string{"/etc"},
		},
		"a volume in a volume": {
			[]specs.Mount{volume, file("/etc/b", "rw")}, []string{"/etc"}, []string{"/etc/b"},
		},
		"another file system before it": {
			[]specs.Mount{tmp, file("/etc/b", "rw")}, nil, []string{"/etc", "/etc/b"},
		},
		"another file system somewhere before it": {
			[]specs.Mount{tmp, file("/b", "rw"), proc}, []string{"/proc"}, []string{"/etc", "/b"},
		},
		// It may lead to the place of what comes next.
		"a link in the place": {
			[]specs.Mount{file("/etc/link", "rw"), file("/etc/b", "rw")}, nil, []string{"/etc/link", "/etc/b"},
		},
		"a link on the way":        {[]specs.Mount{file("/lib/b", "rw")}, nil, []string{"/lib/b"}},
		"a link to a directory":    {[]specs.Mount{bind(dir, "/lib", "rw")}, nil, []string{"/lib"}},
		"a way out":                {[]specs.Mount{file("/etc/../../b", "rw")}, []string{"/b"}, nil},
		"a directory in the place": {[]specs.Mount{file("/etc", "rw")}, nil, []string{"/etc"}},
		"a file in the place":      {[]specs.Mount{bind(dir, "/etc/a", "rw")}, nil, []string{"/etc/a"}},
		"a file on the way":        {[]specs.Mount{bind(dir, "/etc/a/b", "rw")}, nil, []string{"/etc/a/b"}},
		"the root":                 {[]specs.Mount{bind(dir, "/", "rw")}, nil, []string{"/"}},
		"no source":                {[]specs.Mount{bind("/none/none", "/b", "rw")}, nil, []string{"/b"}},
		"ids of its own":           {[]specs.Mount{mapped}, nil, []string{"/etc/b"}},
		"mounts that travel": {
			[]specs.Mount{{Destination: "/etc/b", Type: "bind", Source: source, Options: []string{"rbind", "rslave", "rw"}}},
			nil,
			[]string{"/etc/b"},
		},
		"an option that others know about": {[]specs.Mount{file("/etc/b", "noatime", "rw")}, nil, []string{"/etc/b"}},
		"flags of where it comes from":     {[]specs.Mount{file("/etc/b")}, nil, []string{"/etc/b"}},
		"below another /dev": {
			[]specs.Mount{bind("/dev", "/dev", "rw"), file("/dev/log", "rw")}, nil, []string{"/dev", "/dev/log"},
		},
		"over a device": {[]specs.Mount{dev, file("/dev/null", "rw")}, nil, []string{"/dev", "/dev/null"}},
		"over a link of /dev": {
			[]specs.Mount{dev, bind(dir, "/dev/fd", "rw")}, nil, []string{"/dev", "/dev/fd"},
		},
		"twice on /dev": {
			[]specs.Mount{dev, file("/dev/a", "rw"), file("/dev/a", "ro")}, nil, []string{"/dev", "/dev/a"},
		},
		"below what is on /dev": {
			[]specs.Mount{dev, bind(dir, "/dev/a", "rw"), file("/dev/a/b", "ro")}, nil, []string{"/dev", "/dev/a/b"},
		},
		"behind what is left on /dev": {
			[]specs.Mount{dev, bind(dir, "/dev/a/b", "rw"), file("/dev/a", "ro")}, nil, []string{"/dev", "/dev/a/b", "/dev/a"},
		},
		"another /proc": {[]specs.Mount{bind("/proc", "/proc", "rw")}, nil, []string{"/proc"}},
		"on /proc":      {[]specs.Mount{proc, file("/proc/cpuinfo", "rw")}, []string{"/proc"}, []string{"/proc/cpuinfo"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			taken, left := taken(t, test.mounts)
			if !slices.Equal(taken, test.taken) || !slices.Equal(left, test.left) {
				t.Errorf("taken %q, left %q; want %q, %q", taken, left, test.taken, test.left)
			}
		})
	}
}

// taken are the places in a root whose mounts a stage takes, and those it leaves.
func taken(t *testing.T, mounts []specs.Mount) (taken, left []string) {
	t.Helper()
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
	spec := &specs.Spec{Mounts: mounts, Linux: &specs.Linux{
		Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}}, ReadonlyPaths: []string{"/sys"},
	}}
	for _, m := range stageOf(spec, "/stage", root).Root {
		fi, err := os.Lstat(m.Destination)
		if err != nil || fi.IsDir() == (isBind(m) && !isDir(m.Source)) {
			t.Errorf("place %s: %v", m.Destination, err)
		}
		taken = append(taken, strings.TrimPrefix(m.Destination, root))
	}
	for _, m := range spec.Mounts {
		left = append(left, m.Destination)
	}
	if b, err := os.ReadFile(filepath.Join(root, "etc/a")); err != nil || string(b) != "kept" {
		t.Errorf("a file of the root: got %q, %v", b, err)
	}
	return taken, left
}
