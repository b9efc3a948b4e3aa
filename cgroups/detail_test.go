package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// groupFiles writes the files of one group of a hierarchy that looks like the kernel's.
func groupFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDetail(t *testing.T) {
	v2 := groupFiles(t, map[string]string{
		"g/cpu.weight": "39\n", "g/cpu.max": "20000 100000\n", "g/memory.stat": "anon 1\nkernel 4096\n", "g/memory.low": "7\n", "g/memory.swap.max": "max\n",
		"g/io.stat":             "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n254:16 rbytes=5 wbytes=6 rios=7 wios=8\n",
		"g/hugetlb.2MB.current": "2097152\n", "g/hugetlb.2MB.rsvd.current": "1\n",
	})
	v1 := groupFiles(t, map[string]string{
		"cpu/g/cpu.shares": "998\n", "cpu/g/cpu.cfs_quota_us": "20000\n", "cpu/g/cpu.cfs_period_us": "100000\n",
		"memory/g/memory.kmem.usage_in_bytes": "4096\n", "memory/g/memory.soft_limit_in_bytes": "7\n", "memory/g/memory.memsw.limit_in_bytes": "9223372036854771712\n",
		"blkio/g/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\n254:16 Read 5\n254:16 Write 6\nTotal 14\n",
		"blkio/g/blkio.throttle.io_serviced_recursive":      "8:0 Read 3\n8:0 Write 4\n254:16 Read 7\n254:16 Write 8\nTotal 22\n",
		"hugetlb/g/hugetlb.2MB.usage_in_bytes":              "2097152\n", "hugetlb/g/hugetlb.2MB.max_usage_in_bytes": "2097152\n",
	})
	want := Detail{
		CPUShares: 998, CPUQuotaUs: 20000, CPUPeriodUs: 100000, KernelMemory: 4096, Reservation: 7, SwapLimit: NoLimit, SwapKnown: true,
		Devices:   []DeviceIO{{8, 0, IO{1, 2, 3, 4}}, {254, 16, IO{5, 6, 7, 8}}},
		Hugepages: []Hugepages{{"2MB", 2097152, 2097152}},
	}
	hybrid := &Hierarchy{mode: Hybrid, byName: map[string]string{}}
	for _, c := range []string{"cpu", "memory", "blkio", "hugetlb"} {
		hybrid.byName[c] = v1 + "/" + c
		hybrid.trees = append(hybrid.trees, tree{dir: v1 + "/" + c, controllers: []string{c}})
	}
	all := []string{"cpu", "memory", "io", "hugetlb"}
	unified := &Hierarchy{mode: Unified, unified: v2, v2: all, trees: []tree{{dir: v2, unified: true, controllers: all}}}
	for _, h := range []*Hierarchy{hybrid, unified} {
		got, err := h.Detail("/g")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: got %+v, %v, want %+v", h.Mode(), got, err, want)
		}
		if _, err := h.Detail("/none"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%v: no group: got %v", h.Mode(), err)
		}
	}
}

func FuzzDevices(f *testing.F) {
	f.Add([]byte("8:0 rbytes=1"))
	f.Add([]byte("8:0 Read 1\nTotal 1\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		devicesOfIOStat(data)
		devicesOfBlkio(data, data)
	})
}
