package vm

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// systemTests are those of test/system whose subject the kernel does another way with cgroup v2 than with v1: what is
// counted, who is killed, what is heard, and what a container begins in.
const systemTests = "ForkBomb InodeBomb LogBomb DiskLimitBombs VolumeBomb EvictionForProcessIDs EvictionOfStarting " +
	"EvictionOfFilesInMemory EvictionSparesCache DeadGoBeforePods OOMReport OOMReportsOfLimits OOMWithoutLog NodeLimits " +
	"EvictionOfBomb SoftEviction FlappingPressure EvictionIsFinished EvictedReturns HugePagesAreNobodysMemory EvictionCountsSwap " +
	"Lifecycle KillAgent ResizeWholePod StopLeavesPodsRunning TwoAgents Stats"

// prepare is what a test needs of the machine, which others are better without.
var prepare = map[string]string{
	"HugePagesAreNobodysMemory": "sysctl -q vm.nr_hugepages=16",
	// As much for the pod as its share of the machine's memory: 1 GiB of swap for 3 GiB.
	"EvictionCountsSwap": "fallocate -l 1G /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap",
}

// testLimit is how long a test may take on an emulated machine: ten times of what it takes on one that is idle.
const testLimit = 20 * time.Minute

// TestSystem runs tests of test/system on machines of their own. VM_SYSTEM has what they run, as `make build-test`
// makes it, and the tests as a program; VM_TESTS are the tests, without their first word, and VM_DRIVER makes the
// cgroups.
func TestSystem(t *testing.T) {
	dir := systemFiles(t)
	driver := cmp.Or(os.Getenv("VM_DRIVER"), "cgroupfs")
	for name := range strings.FieldsSeq(cmp.Or(os.Getenv("VM_TESTS"), systemTests)) {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, dir)
			m.boot()
			if first := prepare[name]; first != "" {
				m.run(first)
			}
			m.system(driver, "^Test"+name+"$", "Test"+name)
		})
	}
}

// system runs those tests of test/system whose names match, of which one has to be among those that pass, and none is
// skipped.
func (m *machine) system(driver, match, passes string) {
	m.t.Helper()
	m.program("test/system", "system.test", match, passes, "BERTH_TEST_LIMIT=8m BERTH_CGROUP_DRIVER="+driver)
}

// program runs tests of a package that are in bin/test, in its directory, where they find all else from.
func (m *machine) program(dir, name, match, passes, environment string) {
	m.t.Helper()
	out, err := m.try(testLimit, fmt.Sprintf(`cd /run/berth-vm/%s && %s /run/berth-vm/bin/test/%s -test.v -test.timeout %s -test.run '%s'`,
		dir, environment, name, testLimit-time.Minute, match))
	if err != nil || !strings.Contains(out, "--- PASS: "+passes) || strings.Contains("\n"+out, "\n--- SKIP") {
		m.t.Errorf("%v: %s", err, out[max(0, len(out)-20000):])
		return
	}
	m.t.Log(out[max(0, len(out)-2000):])
}

// systemFiles has what the tests of test/system run, as they find it.
func systemFiles(t *testing.T) (dir string) {
	t.Helper()
	from := os.Getenv("VM_SYSTEM")
	if from == "" || os.Getenv("VM_IMAGE") == "" {
		t.Skip("needs virtual machines: make test-v2 or csi-vm")
	}
	dir = t.TempDir()
	programs := []string{"berth", "berth-helper", "berth-wasm"}
	more, err := filepath.Glob(filepath.Join(from, "test", "*"))
	if err != nil || len(more) == 0 {
		t.Fatalf("nothing in %s: %v", from, err)
	}
	for _, path := range more {
		programs = append(programs, "test/"+filepath.Base(path))
	}
	for _, name := range programs {
		copyFile(t, filepath.Join(from, name), filepath.Join(dir, "bin", name))
	}
	copyFile(t, os.Getenv("VM_GUEST"), filepath.Join(dir, "guest"))
	for _, of := range []string{"test/system", "test/sanity", "csi/local"} {
		if err := os.MkdirAll(filepath.Join(dir, of), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
