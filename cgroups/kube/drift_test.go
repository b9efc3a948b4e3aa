package kube

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
)

// oneGroup is a hierarchy in which there is one group, with all files in one directory.
type oneGroup struct{ dir string }

func (g oneGroup) Exists(string) bool { return true }

func (g oneGroup) Dir(_, _ string) string { return g.dir }

// A hybrid machine has huge pages where whoever booted it has put them: systemd leaves them on v1, others have only
// v2's.
func TestDriftOfHugePages(t *testing.T) {
	for _, file := range []string{"hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"} {
		g := oneGroup{t.TempDir()}
		if err := os.WriteFile(filepath.Join(g.dir, file), []byte("4194304\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want := otherSettings(cgroups.Hybrid, &specs.LinuxResources{
			CPU: &specs.LinuxCPU{}, HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2 << 20}},
		})
		d, err := Drift(g, "/x", want)
		if err != nil || len(d) != 1 || d[0].File != file || d[0].Found != "4194304" {
			t.Errorf("%s: %v, %v", file, d, err)
		}
	}
}
