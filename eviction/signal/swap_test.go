package signal

import (
	"maps"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestSwap: what pods may swap is available while there is swap for it, and by the kernel's reading alone.
func TestSwap(t *testing.T) {
	const anon = "anon 1\ninactive_anon 60000000\nactive_anon 40000000\n"
	files := procFiles()
	maps.Copy(files, map[string]string{
		"v2/kubepods/burstable/memory.stat": "inactive_anon 400000000\nactive_anon 0\n", "v2/kubepods/burstable/memory.swap.max": "max\n",
		"v2/kubepods/burstable/memory.swap.current": "5000000\n",
		"v2/kubepods/burstable/a/memory.stat":       "inactive_anon 200000000\n", "v2/kubepods/burstable/a/memory.swap.max": "max\n",
		// 30 MB of its 35 are left to it.
		"v2/kubepods/burstable/a/c/memory.stat": anon, "v2/kubepods/burstable/a/c/memory.swap.max": "35000000\n",
		"v2/kubepods/burstable/a/c/memory.swap.current": "5000000\n",
		// It has less than it may swap, and what it has made inside is its own.
		"v2/kubepods/burstable/a/d/memory.stat": anon, "v2/kubepods/burstable/a/d/memory.swap.max": "900000000\n",
		"v2/kubepods/burstable/a/d/own/memory.swap.max": "0\n",
		// A critical one may not.
		"v2/kubepods/burstable/b/memory.stat": "inactive_anon 100000000\n", "v2/kubepods/burstable/b/memory.swap.max": "max\n",
		"v2/kubepods/burstable/b/c/memory.stat": anon, "v2/kubepods/burstable/b/c/memory.swap.max": "0\n",
		"v2/kubepods/burstable/e/memory.swap.max": "torn", "v2/kubepods/burstable/e/memory.stat": "?",
	})
	dir := tree(t, files)
	write := func(file, text string) {
		if err := os.WriteFile(dir+"/"+file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := dir + "/v2"
	const swappable = 30000000 + 100000000
	synctest.Test(t, func(t *testing.T) {
		n := NewNode(Paths{Proc: dir + "/proc", MemoryRoot: root, Allocatable: root + "/kubepods", Swap: root + "/kubepods/burstable"})
		require := func(what string, want int64) {
			t.Helper()
			got, err := n.Memory()
			if a := got[MemoryAvailable].Available - 600000<<10; err != nil || a != want {
				t.Errorf("%s: %d more than MemAvailable, want %d, %v", what, a, want, err)
			}
			if a := got[AllocatableMemoryAvailable].Available - (800000000 - (500000000 - 150000000 - 7000000)); a != want {
				t.Errorf("%s: %d more of what pods may have, want %d", what, a, want)
			}
		}
		require("free swap", swappable)
		write("v2/kubepods/burstable/memory.swap.current", "25000000\n")
		require("some was swapped since", swappable-20000000)
		write("v2/kubepods/burstable/a/c/memory.swap.current", "25000000\n")
		time.Sleep(swapWalk)
		require("a moment later", swappable-20000000)
		write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 600000 kB\nSwapTotal: 500000 kB\nSwapFree: 7 kB\n")
		require("hardly any swap", 7<<10)
		write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 600000 kB\n")
		require("no swap", 0)
		write("proc/meminfo", meminfo)
		n = NewNode(Paths{Proc: dir + "/proc", MemoryRoot: root, Allocatable: root + "/kubepods"})
		require("pods may not swap", 0)
		n = NewNode(Paths{Memory: Kubelet, Proc: dir + "/proc", MemoryRoot: root, Swap: root + "/kubepods/burstable"})
		if got, err := n.Memory(); err != nil || got[MemoryAvailable].Available != 1000000<<10-500000000 {
			t.Errorf("kubelet's reading: %v, %v", got, err)
		}
	})
}
