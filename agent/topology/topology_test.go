package topology_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/agent/topology/topologytest"
)

// groups writes the CPUs of each group as one word.
func groups(m *topology.Machine, key func(topology.CPU) int) string {
	var out []string
	for _, g := range m.Groups(key) {
		out = append(out, g.String())
	}
	return strings.Join(out, " ")
}

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		name, sockets, nodes, caches, cores string
		threads                             int
	}{
		{"two-sockets", "0-7 8-15", "0-7 8-15", "0-7 8-15", "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15", 2},
		{"split-cache", "0-7 8-15", "0-7 8-15", "0-3 4-7 8-11 12-15", "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15", 2},
		{"two-nodes-a-socket", "0-7 8-15", "0-3 4-7 8-11 12-15", "0-3 4-7 8-11 12-15", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", 1},
		{"four-nodes", "0-1 2-3 4 6-7", "0-1 2-3 4 6-7", "0-1 2-3 4 6-7", "0 1 2 3 4 6 7", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := topologytest.Machine(t, tc.name)
			for what, got := range map[string][2]string{
				"sockets": {groups(m, func(c topology.CPU) int { return c.Socket }), tc.sockets},
				"nodes":   {groups(m, func(c topology.CPU) int { return c.Node }), tc.nodes},
				"caches":  {groups(m, func(c topology.CPU) int { return c.Cache }), tc.caches},
				"cores":   {groups(m, func(c topology.CPU) int { return c.Core }), tc.cores},
			} {
				if got[0] != got[1] {
					t.Errorf("%s are %s, want %s", what, got[0], got[1])
				}
			}
			if got := m.ThreadsPerCore(); got != tc.threads {
				t.Errorf("%d threads a core, want %d", got, tc.threads)
			}
		})
	}
}

func TestReadNodes(t *testing.T) {
	m := topologytest.Machine(t, "two-sockets")
	if got := m.Nodes[1].Memory; got != 790347776 {
		t.Errorf("node 1 has %d bytes", got)
	}
	for i, want := range []int64{8, 16} {
		if got := m.Nodes[i].HugePages[2<<20]; got != want || len(m.Nodes[i].HugePages) != 1 {
			t.Errorf("node %d has huge pages %v, want %d of 2 MiB", i, m.Nodes[i].HugePages, want)
		}
	}
	if a, b := m.Distance(0, 1), m.Distance(1, 1); a != 21 || b != 10 {
		t.Errorf("distances are %d and %d", a, b)
	}
	if d := m.Distance(0, 9); d != 255 {
		t.Errorf("a node that is not there is %d away", d)
	}
}

// TestReadWithoutNUMA reads what a kernel says that was built without NUMA, on a machine that tells of no caches.
func TestReadWithoutNUMA(t *testing.T) {
	root := t.TempDir()
	for path, content := range map[string]string{
		"sys/devices/system/cpu/online":                             "0-1\n",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
		"sys/devices/system/cpu/cpu0/topology/core_siblings_list":   "0-1\n",
		"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1\n",
		"sys/devices/system/cpu/cpu1/topology/core_siblings_list":   "0-1\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":     "3\n",
		"proc/meminfo": "MemFree: 1 kB\nMemTotal: 2048 kB\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := topology.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Nodes) != 1 || m.Nodes[0].Memory != 2<<20 || m.Nodes[0].HugePages[2<<20] != 3 || m.InNode(0).String() != "0-1" {
		t.Errorf("read %+v", m)
	}
	if err := os.Remove(filepath.Join(root, "proc/meminfo")); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Read(root); err == nil {
		t.Error("a machine without memory was read")
	}
}

// TestReadThis reads the machine that it runs on.
func TestReadThis(t *testing.T) {
	m, err := topology.Read("/")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.CPUs) == 0 || len(m.Nodes) == 0 || m.Nodes[0].Memory == 0 {
		t.Errorf("read %+v", m)
	}
}

// FuzzRead reads broken files: an error, or a machine in which every CPU is in a node's list or in none.
func FuzzRead(f *testing.F) {
	f.Add("0-1", "0", "0-1", "10", "MemTotal: 12 kB", "0-1", "8")
	f.Add("0-3,9", "0-1", "0-9", "10 20", "Node 0 MemTotal: 99999999999999999 kB", "9", "-1")
	f.Fuzz(func(t *testing.T, online, nodes, cpulist, distance, meminfo, siblings, pages string) {
		if strings.Count(online, "-")+strings.Count(cpulist, "-")+strings.Count(siblings, "-")+strings.Count(nodes, "-") > 0 {
			for _, s := range []string{online, cpulist, siblings, nodes} {
				if len(s) > 6 {
					t.Skip() // a range of millions of CPUs takes millions of entries
				}
			}
		}
		root := t.TempDir()
		for path, content := range map[string]string{
			"sys/devices/system/cpu/online":                                         online,
			"sys/devices/system/node/online":                                        nodes,
			"sys/devices/system/node/node0/cpulist":                                 cpulist,
			"sys/devices/system/node/node0/distance":                                distance,
			"sys/devices/system/node/node0/meminfo":                                 meminfo,
			"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": pages,
			"sys/devices/system/cpu/cpu0/topology/core_cpus_list":                   siblings,
		} {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := topology.Read(root)
		if err == nil && len(m.CPUs) == 0 {
			t.Error("a machine without CPUs was read")
		}
	})
}
