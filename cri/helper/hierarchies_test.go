package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
)

// TestHierarchies: they are those that the whole list of mounts has.
func TestHierarchies(t *testing.T) {
	if cgroups.IsCgroup2UnifiedMode() {
		t.Skip("there is no cgroup v1")
	}
	got, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	libraryMounts = all
	want, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]cgroups.Mount{got, want} {
		for _, m := range list {
			slices.Sort(m.Subsystems)
		}
	}
	if len(want) == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("they are %+v, and not %+v", got, want)
	}
}

// TestHierarchiesAreTheLibrarys: the variables are those of the library as it is, which takes its mounts out of them.
func TestHierarchiesAreTheLibrarys(t *testing.T) {
	if cgroups.IsCgroup2UnifiedMode() {
		t.Skip("there is no cgroup v1")
	}
	if err := readHierarchies(); err != nil {
		t.Fatal(err)
	}
	had := libraryMounts
	defer func() { libraryMounts = had }()
	libraryMounts = []*mountinfo.Info{{Mountpoint: "/nowhere/none", Root: "/", VFSOptions: "rw,none"}}
	if at, err := cgroups.FindCgroupMountpoint("/", "none"); err != nil || at != "/nowhere/none" {
		t.Errorf("the library finds it at %q, %v", at, err)
	}
}

// TestHierarchyMountsEnd: nothing behind the last that was missing is looked at.
func TestHierarchyMountsEnd(t *testing.T) {
	const text = `27 1 254:0 / / rw - ext4 /dev/vda rw
32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
this is none
`
	missing := map[string]string{"cpu": "/", "cpuacct": "/", "name=systemd": "/"}
	got, err := mountinfo.GetMountsFromReader(strings.NewReader(text), untilFound(missing))
	if err != nil || len(got) != 2 || got[1].Mountpoint != "/sys/fs/cgroup/systemd" {
		t.Errorf("they are %v, %v", got, err)
	}
	missing = map[string]string{"cpu": "/", "memory": "/"}
	if _, err := mountinfo.GetMountsFromReader(strings.NewReader(text), untilFound(missing)); err == nil {
		t.Error("the reading ended before memory was found")
	}
}
