package signal

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// tree writes files below a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const meminfo = "MemTotal:       1000000 kB\nMemFree:         100000 kB\nMemAvailable:    600000 kB\nSwapTotal:       500000 kB\nSwapFree: 500000 kB\n"

func procFiles() map[string]string {
	return map[string]string{
		"proc/meminfo": meminfo, "proc/loadavg": "0.20 0.18 0.12 1/80 11206\n",
		"proc/sys/kernel/pid_max": "32768\n", "proc/sys/kernel/threads-max": "20000\n",
		"v1/memory.usage_in_bytes":          "700000000\n",
		"v1/memory.stat":                    "cache 1\ninactive_file 1\nhierarchical_memory_limit 9223372036854771712\ntotal_dirty 1000\ntotal_writeback 500\ntotal_inactive_file 200000000\ntotal_active_file 100000000\n",
		"v1/kubepods/memory.usage_in_bytes": "500000000\n",
		"v1/kubepods/memory.stat":           "hierarchical_memory_limit 800000000\ntotal_inactive_file 100000000\ntotal_active_file 50000000\ntotal_dirty 10000000\ntotal_writeback 5000000\n",
		"v2/memory.stat":                    "anon 300000000\nfile 400000000\ninactive_file 200000000\nactive_file 100000000\n",
		"v2/kubepods/memory.current":        "500000000\n",
		"v2/kubepods/memory.max":            "800000000\n",
		"v2/kubepods/memory.stat":           "anon 300000000\ninactive_file 100000000\nactive_file 50000000\nfile_dirty 10000000\nfile_writeback 5000000\nslab_reclaimable 7000000\n",
	}
}

func TestNodeMemory(t *testing.T) {
	dir := tree(t, procFiles())
	for _, tt := range []struct {
		name                   string
		mode                   MemoryReading
		version                string
		available, allocatable int64
	}{
		{"kernel v1", Kernel, "v1", 600000 << 10, 800000000 - (500000000 - 150000000)},
		{"kernel v2", "", "v2", 600000 << 10, 800000000 - (500000000 - 150000000 - 7000000)},
		{"kubelet v1", Kubelet, "v1", 1000000<<10 - 500000000, 400000000},
		// The root group of v2 has no memory.current.
		{"kubelet v2", Kubelet, "v2", 1000000<<10 - 500000000, 400000000},
	} {
		root := filepath.Join(dir, tt.version)
		n := NewNode(Paths{Memory: tt.mode, Proc: dir + "/proc", MemoryRoot: root, Allocatable: root + "/kubepods"})
		got, err := n.Memory()
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if r := got[MemoryAvailable]; r.Available != tt.available || r.Capacity != 1000000<<10 || r.Time.IsZero() {
			t.Errorf("%s: %+v, want %d", tt.name, r, tt.available)
		}
		if r := got[AllocatableMemoryAvailable]; r.Available != tt.allocatable || r.Capacity != 800000000 {
			t.Errorf("%s: allocatable %+v, want %d", tt.name, r, tt.allocatable)
		}
	}
}

func TestNodeMemoryMissing(t *testing.T) {
	files := procFiles()
	files["v1/kubepods/memory.stat"] = "hierarchical_memory_limit 9223372036854771712\n"
	files["v2/kubepods/memory.max"] = "max\n"
	files["proc/meminfo"] = "MemTotal: 1000000 kB\n"
	dir := tree(t, files)
	for _, version := range []string{"v1", "v2"} {
		got, err := NewNode(Paths{Proc: dir + "/proc", Allocatable: dir + "/" + version + "/kubepods"}).Memory()
		if len(got) > 0 || err == nil || !strings.Contains(err.Error(), "MemAvailable") {
			t.Errorf("%s: a group without a limit and a kernel without MemAvailable: %v, %v", version, got, err)
		}
	}
	got, err := NewNode(Paths{Memory: Kubelet, Proc: dir + "/proc", MemoryRoot: dir + "/v2", Allocatable: dir + "/none"}).Memory()
	if len(got) != 1 || err == nil || !strings.Contains(err.Error(), string(AllocatableMemoryAvailable)) {
		t.Errorf("a group that is not there: %v, %v", got, err)
	}
}

func TestNodePIDs(t *testing.T) {
	files := procFiles()
	dir := tree(t, files)
	got, err := NewNode(Paths{Proc: dir + "/proc"}).PIDs()
	if r := got[PIDAvailable]; err != nil || r.Capacity != 20000 || r.Available != 19920 {
		t.Errorf("%v, %v", got, err)
	}
	if err := os.WriteFile(dir+"/proc/sys/kernel/pid_max", []byte("60\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = NewNode(Paths{Proc: dir + "/proc"}).PIDs()
	if r := got[PIDAvailable]; err != nil || r.Capacity != 60 || r.Available != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestNodeReal reads this machine.
func TestNodeReal(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/images", 0o700); err != nil {
		t.Fatal(err)
	}
	n := NewNode(Paths{NodeFS: dir, ImageFS: dir + "/images", ContainerFS: dir + "/none"})
	got, err := n.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), string(ContainerFsAvailable)) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if got[NodeFsAvailable] != got[ImageFsAvailable] || got[NodeFsInodesFree] != got[ImageFsInodesFree] {
		t.Errorf("one file system has two readings: %v", got)
	}
	for _, of := range []Signal{MemoryAvailable, NodeFsAvailable, PIDAvailable} {
		if r := got[of]; r.Available <= 0 || r.Capacity < r.Available || r.Time.IsZero() {
			t.Errorf("%s: %+v", of, r)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if want := int64(st.Blocks) * st.Bsize; got[NodeFsAvailable].Capacity != want {
		t.Errorf("capacity %d, want %d", got[NodeFsAvailable].Capacity, want)
	}
}

// TestDiskHangs: statfs of a server that is dead never returns. It is asked once, and others are read meanwhile.
func TestDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var calls atomic.Int32
		n := NewNode(Paths{NodeFS: "/", ImageFS: "/dead"})
		n.disks["/"].statfs = func(_ string, st *unix.Statfs_t) (uint64, error) {
			*st = unix.Statfs_t{Bsize: 10, Blocks: 9, Bfree: 8, Bavail: 7, Files: 6, Ffree: 5}
			return 1, nil
		}
		n.disks["/dead"].statfs = func(_ string, st *unix.Statfs_t) (uint64, error) {
			calls.Add(1)
			<-answer
			*st = unix.Statfs_t{Bsize: 1, Blocks: 2, Bavail: 1}
			return 2, nil
		}
		begin := time.Now()
		for range 3 {
			got, err := n.Disks(t.Context())
			if err == nil || !strings.Contains(err.Error(), "does not answer") || !slices.Equal(keys(got), []Signal{NodeFsAvailable, NodeFsInodesFree}) {
				t.Errorf("%v, %v", got, err)
			}
			if b, i := got[NodeFsAvailable], got[NodeFsInodesFree]; b.Available != 70 || b.Capacity != 90 || i.Available != 5 || i.Capacity != 6 {
				t.Errorf("%v", got)
			}
		}
		if took := time.Since(begin); took != diskDeadline { // of the bubble's clock
			t.Errorf("three reads waited for %v", took)
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls hang", calls.Load())
		}
		close(answer)
		synctest.Wait()
		got, err := n.Disks(t.Context())
		if err != nil || got[ImageFsAvailable].Available != 1 || calls.Load() != 2 {
			t.Errorf("after it has come back: %v, %v, %d calls", got, err, calls.Load())
		}
		if _, ok := got[ImageFsInodesFree]; ok {
			t.Error("a file system without a number of inodes has none left")
		}
	})
}

func keys(r Readings) []Signal { return slices.Sorted(maps.Keys(r)) }

func TestSpaceOverflow(t *testing.T) {
	bytes, inodes := space(&unix.Statfs_t{Bsize: 1 << 40, Blocks: math.MaxUint64, Bavail: 1 << 40, Files: math.MaxUint64}, time.Time{})
	if bytes.Capacity != math.MaxInt64 || bytes.Available != math.MaxInt64 || inodes.Capacity != math.MaxInt64 {
		t.Errorf("%v %v", bytes, inodes)
	}
	if bytes, _ = space(&unix.Statfs_t{Bsize: -1, Blocks: 5}, time.Time{}); bytes.Capacity != 0 {
		t.Errorf("%v", bytes)
	}
}

func TestFigures(t *testing.T) {
	f := figures("inactive_file 7\n inactive\nfile 5 kB\nMemTotal:  9223372036854775807 kB\nbad -1\nlarge 99999999999999999999\nanon: x\nanon 3")
	for name, want := range map[string]int64{
		"inactive_file": 7, "file": 5, "MemTotal": math.MaxInt64 >> 11, "bad": -1, "large": -1, "inactive": -1, "": -1, "anon": 3, "Mem": -1,
	} {
		n, ok := f.find(name)
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %d %v, want %d", name, n, ok, want)
		}
	}
}

func FuzzFigures(f *testing.F) {
	f.Add(meminfo, "MemTotal")
	f.Add("total_dirty 99999999999999999999\ninactive_file -1\na: 9223372036854775807 kB\n", "a")
	f.Fuzz(func(t *testing.T, text, name string) {
		if n, ok := figures(text).find(name); n < 0 || n > 0 && !ok {
			t.Errorf("%q is %d, %v", name, n, ok)
		}
	})
}

func FuzzParseTasks(f *testing.F) {
	f.Add("0.20 0.18 0.12 1/80 11206\n")
	f.Add("0 0 0 1/-5 1")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseTasks(text); err == nil && n < 0 {
			t.Errorf("%q has %d tasks", text, n)
		}
	})
}

// BenchmarkRead is a look at this machine.
func BenchmarkRead(b *testing.B) {
	n := NewNode(Paths{NodeFS: "/", ImageFS: "/"})
	for b.Loop() {
		if _, err := n.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
