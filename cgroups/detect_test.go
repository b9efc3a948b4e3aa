package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Mounts as machines have them, of /proc/self/mountinfo; B is the directory that control groups are mounted in.
const (
	// Linux 6.18 with every v1 controller in a hierarchy of its own, and v2 beside them, as some hosts of virtual
	// machines give it.
	mountsHybrid = `31 23 0:28 / B rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / B/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / B/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / B/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / B/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / B/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / B/unified rw,relatime - cgroup2 cgroup2 rw
`
	// systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1
	mountsLegacy = `25 20 0:22 / B ro,nosuid,nodev,noexec shared:4 - tmpfs tmpfs ro,size=4096k,nr_inodes=1024,mode=755
26 25 0:23 / B/systemd rw,nosuid,nodev,noexec,relatime shared:5 - cgroup cgroup rw,xattr,name=systemd
30 25 0:27 / B/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct
31 25 0:28 / B/memory rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,memory
`
	// Debian 12.
	mountsUnified = `26 23 0:24 / B rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`
	// A distribution without systemd on v2, where something has mounted systemd's named hierarchy.
	mountsNamed = `26 23 0:24 / B rw,nosuid shared:9 - cgroup2 cgroup2 rw
27 26 0:25 / B/systemd rw - cgroup cgroup rw,name=systemd
`
)

func TestDetect(t *testing.T) {
	for _, tt := range []struct {
		name, mounts, v2 string // v2 is where it is mounted, "-" nowhere
		controllers      string // of v2
		covered          string // a mount that another one lies over
		mode             Mode
		cpu, hugetlb     string // where the controllers are, "" nowhere
		fails            error
	}{
		{name: "hybrid", mounts: mountsHybrid, v2: "/unified", controllers: "hugetlb", mode: Hybrid, cpu: "/cpu/x", hugetlb: "/unified/x"},
		{name: "hybrid, v2 covered", mounts: mountsHybrid, v2: "/unified", covered: "/unified", mode: Legacy, cpu: "/cpu/x"},
		{name: "legacy", mounts: mountsLegacy, v2: "-", mode: Legacy, cpu: "/cpu,cpuacct/x"},
		{name: "unified", mounts: mountsUnified, controllers: "cpuset cpu io memory hugetlb pids rdma misc", mode: Unified, cpu: "/x", hugetlb: "/x"},
		{name: "unified, few controllers", mounts: mountsUnified, controllers: "memory pids", mode: Unified},
		{name: "unified beside a named one", mounts: mountsNamed, controllers: "cpu memory", mode: Unified, cpu: "/x"},
		{name: "nothing", fails: ErrNoHierarchy},
		{name: "v1 without controllers", mounts: "26 25 0:23 / B/systemd rw - cgroup cgroup rw,name=systemd\n", v2: "-", fails: ErrNoHierarchy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			mounts, err := parseMountinfo(strings.NewReader(strings.ReplaceAll(tt.mounts, " B", " "+base)), base)
			if err != nil {
				t.Fatal(err)
			}
			if tt.v2 != "-" {
				if err := os.MkdirAll(base+tt.v2, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(base+tt.v2, "cgroup.controllers"), []byte(tt.controllers+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h, err := detect(base, mounts, func(dir string, _ int64) (bool, error) { return tt.covered == "" || dir != base+tt.covered, nil })
			if tt.fails != nil || err != nil {
				if !errors.Is(err, tt.fails) {
					t.Fatalf("%v, want %v", err, tt.fails)
				}
				return
			}
			if h.Mode() != tt.mode {
				t.Errorf("%s, want %s", h.Mode(), tt.mode)
			}
			for controller, want := range map[string]string{"cpu": tt.cpu, "hugetlb": tt.hugetlb} {
				if want != "" {
					want = base + want
				}
				if got := h.Dir(controller, "/x"); got != want {
					t.Errorf("%s is at %q, want %q", controller, got, want)
				}
			}
			if slices.Contains(h.Controllers(), "name=systemd") {
				t.Error("a named hierarchy is told as a controller")
			}
		})
	}
}
