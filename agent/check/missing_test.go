package check

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// TestOverlayMissing tries overlay where it cannot be: what is written to must not be an overlay itself.
func TestOverlayMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	if a := probeOverlay(t.Context(), &env{dir: dir}); a.status != OK {
		t.Skipf("this machine has none: %+v", a)
	}
	if err := mkdirs(dir, "lower", "upper", "work", "merged"); err != nil {
		t.Fatal(err)
	}
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	}()
	a := probeOverlay(t.Context(), &env{dir: merged})
	if a.status != Missing || !strings.Contains(a.found, "mount") {
		t.Errorf("%+v", a)
	}
	if left, err := os.ReadDir(merged); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	r := run(t.Context(), []probe{{"overlay", false, "cost", answering(a)}}, &env{})
	if r.Rows[0].Remedy == "" {
		t.Error("nothing says what to do")
	}
}

// TestControllerMissing is a machine whose groups cannot be read at all.
func TestControllerMissing(t *testing.T) {
	e := &env{hErr: errors.New("not mounted")}
	for _, p := range cgroupProbes() {
		if a := p.run(t.Context(), e); p.required && a.status != Missing {
			t.Errorf("%s: %+v", p.name, a)
		}
	}
}

// withoutMemory tells the test that it runs where the memory controller is not mounted.
const withoutMemory = "BERTH_TEST_WITHOUT_MEMORY"

// TestMemoryControllerMissing is a machine with cgroup v1 whose kernel has no memory controller, as Debian had it on
// some boards: this one's, in a mount namespace in which it is not mounted.
func TestMemoryControllerMissing(t *testing.T) {
	const memory = "/sys/fs/cgroup/memory"
	if os.Getenv(withoutMemory) == "" {
		if _, err := os.Stat(memory + "/memory.limit_in_bytes"); err != nil || os.Geteuid() != 0 {
			t.Skip("needs root, and cgroup v1 with its memory controller at " + memory)
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c",
			`umount `+memory+` && exec "$0" -test.v -test.run '^TestMemoryControllerMissing$'`, os.Args[0])
		cmd.Env = append(os.Environ(), withoutMemory+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	e := &env{}
	e.h, e.hErr = cgroups.Open("")
	for _, p := range cgroupProbes() {
		if p.name != "cgroup memory" {
			continue
		}
		r := run(t.Context(), []probe{p}, e)
		if row := r.Rows[0]; r.OK() || row.Status != Missing || !strings.Contains(row.Remedy, "cgroup_enable=memory") {
			t.Errorf("%+v", row)
		}
	}
}
