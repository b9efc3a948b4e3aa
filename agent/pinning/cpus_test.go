package pinning

import (
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/agent/topology/topologytest"
)

func parse(t *testing.T, s string) cpuset.CPUSet {
	t.Helper()
	set, err := cpuset.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestPick(t *testing.T) {
	machines := map[string]*topology.Machine{}
	for _, name := range []string{"two-sockets", "split-cache", "two-nodes-a-socket", "four-nodes"} {
		machines[name] = topologytest.Machine(t, name)
	}
	for _, tc := range []struct {
		machine, name string
		opts          CPUOptions
		taken, near   string
		n             int
		want          string
	}{
		{"two-sockets", "one thread", CPUOptions{}, "", "", 1, "0"},
		{"two-sockets", "the rest of a core that is broken", CPUOptions{}, "0,8", "", 1, "1"},
		{"two-sockets", "a whole core rather than two broken ones", CPUOptions{}, "0,2", "", 2, "4-5"},
		{"two-sockets", "a core and one more", CPUOptions{}, "", "", 3, "0-2"},
		{"two-sockets", "a whole socket", CPUOptions{}, "", "", 8, "0-7"},
		{"two-sockets", "the whole socket, since the other one is broken", CPUOptions{}, "0", "", 8, "8-15"},
		{"two-sockets", "the fuller socket, where it fits", CPUOptions{}, "0-3", "", 4, "4-7"},
		{"two-sockets", "a socket and more", CPUOptions{}, "", "", 10, "0-9"},
		{"two-sockets", "near node 1", CPUOptions{}, "", "8-15", 2, "8-9"},
		{"two-sockets", "near node 1 first, which is too small", CPUOptions{}, "8-13", "8-15", 4, "0-1,14-15"},
		{"two-sockets", "across cores", CPUOptions{DistributeAcrossCores: true}, "", "", 4, "0,2,4,6"},
		{"two-sockets", "across cores, more than there are", CPUOptions{DistributeAcrossCores: true}, "", "", 9, "0-2,4,6,8,10,12,14"},
		{"two-sockets", "across nodes is not needed", CPUOptions{DistributeAcrossNUMA: true}, "", "", 8, "0-7"},
		{"two-sockets", "across nodes", CPUOptions{DistributeAcrossNUMA: true}, "", "", 10, "0-4,8-12"},
		{"two-sockets", "across nodes, an odd number", CPUOptions{DistributeAcrossNUMA: true}, "", "", 11, "0-5,8-12"},
		{"two-sockets", "across nodes in cores", CPUOptions{DistributeAcrossNUMA: true, FullPCPUsOnly: true}, "", "", 10, "0-5,8-11"},
		{"split-cache", "any two cores", CPUOptions{}, "0-1", "", 4, "2-5"},
		{"split-cache", "two cores of one cache", CPUOptions{PreferAlignByUncoreCache: true}, "0-1", "", 4, "4-7"},
		{"split-cache", "what is left of a broken cache", CPUOptions{PreferAlignByUncoreCache: true}, "0-1", "", 2, "2-3"},
		{"two-nodes-a-socket", "a node", CPUOptions{}, "", "", 4, "0-3"},
		{"two-nodes-a-socket", "two nodes of one socket", CPUOptions{}, "0", "", 8, "8-15"},
		{"two-nodes-a-socket", "across the two nodes", CPUOptions{DistributeAcrossNUMA: true}, "", "", 6, "0-2,4-6"},
		{"four-nodes", "around the CPU that is offline", CPUOptions{}, "0-3", "", 3, "4,6-7"},
		{"four-nodes", "all of it", CPUOptions{}, "", "", 7, "0-4,6-7"},
	} {
		m := machines[tc.machine]
		got, err := pick(m, tc.opts, m.All().Difference(parse(t, tc.taken)), parse(t, tc.near), tc.n)
		if err != nil {
			t.Errorf("%s, %s: %v", tc.machine, tc.name, err)
		} else if got.String() != tc.want {
			t.Errorf("%s, %s: got %s, want %s", tc.machine, tc.name, got, tc.want)
		}
	}
}

func TestPickTooMany(t *testing.T) {
	m := topologytest.Machine(t, "four-nodes")
	_, err := pick(m, CPUOptions{}, parse(t, "0-1"), cpuset.New(), 3)
	if err == nil || !strings.Contains(err.Error(), "requested=3, available=2") {
		t.Errorf("got %v", err)
	}
}

// TestPickAnything takes random numbers out of random sets: as many as asked for, and only what is free.
func TestPickAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"two-sockets", "split-cache", "two-nodes-a-socket", "four-nodes"} {
		m := topologytest.Machine(t, name)
		for range 100 {
			var free, near []int
			for _, c := range m.CPUs {
				if r.IntN(3) > 0 {
					free = append(free, c.ID)
				}
				if r.IntN(2) > 0 {
					near = append(near, c.ID)
				}
			}
			opts := CPUOptions{
				DistributeAcrossNUMA: r.IntN(2) > 0, FullPCPUsOnly: r.IntN(2) > 0, PreferAlignByUncoreCache: r.IntN(2) > 0, DistributeAcrossCores: r.IntN(4) == 0,
			}
			n := r.IntN(len(free) + 1)
			got, err := pick(m, opts, cpuset.New(free...), cpuset.New(near...), n)
			if err != nil || got.Size() != n || !got.IsSubsetOf(cpuset.New(free...)) {
				t.Fatalf("%s: %d of %v near %v with %+v: got %s (%v)", name, n, free, near, opts, got, err)
			}
			if want := min(n, cpuset.New(free...).Intersection(cpuset.New(near...)).Size()); got.Intersection(cpuset.New(near...)).Size() < want {
				t.Fatalf("%s: %d of %v near %v: got %s, which is not near", name, n, free, near, got)
			}
		}
	}
}

func TestCPUWish(t *testing.T) {
	m := topologytest.Machine(t, "two-nodes-a-socket")
	preferred := func(w wish) (out []Nodes) {
		for _, h := range w {
			if h.Preferred {
				out = append(out, h.Nodes)
			}
		}
		return out
	}
	all := m.All()
	if got := preferred(cpuWish(m, CPUOptions{}, all, cpuset.New(), 4)); len(got) != 4 {
		t.Errorf("4 CPUs fit on each of 4 nodes, preferred are %v", got)
	}
	if got := preferred(cpuWish(m, CPUOptions{}, parse(t, "0-2,4-6"), cpuset.New(), 4)); len(got) != 0 {
		t.Errorf("no node has 4 CPUs free, preferred are %v", got)
	}
	if got := preferred(cpuWish(m, CPUOptions{AlignBySocket: true}, parse(t, "0-2,4-6"), cpuset.New(), 4)); len(got) != 1 || got[0] != NodesOf(0, 1) {
		t.Errorf("one socket has 4 CPUs free, preferred are %v", got)
	}
	if got := cpuWish(m, CPUOptions{}, all.Difference(parse(t, "8-9")), parse(t, "8-9"), 2); len(got) == 0 || len(preferred(got)) != 1 || preferred(got)[0] != NodesOf(2) {
		t.Errorf("CPUs 8-9 are to be used again, on node 2: %v", got)
	}
	if got := cpuWish(m, CPUOptions{}, cpuset.New(), cpuset.New(), 1); got == nil || len(got) != 0 {
		t.Errorf("nothing is free: %v", got)
	}
}
