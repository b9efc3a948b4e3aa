package pinning

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/topology/topologytest"
)

// staticMemory is a machine of two nodes with 600 MiB and 620 MiB to give, and pages of 2 MiB: 16 MiB and 32 MiB.
func staticMemory(t *testing.T, policy AlignmentPolicy) Config {
	t.Helper()
	m := topologytest.Machine(t, "two-sockets")
	m.Nodes[0].Memory, m.Nodes[1].Memory = 716<<20, 752<<20
	keep := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
	return Config{
		StaticMemory: true, ReservedMemory: []NodeMemory{{0, keep}, {1, keep}}, Alignment: policy,
		Machine: m, File: filepath.Join(t.TempDir(), "pinned.json"), Runtime: &containers{},
	}
}

func wantMems(t *testing.T, m *Manager, uid, container, mems string) {
	t.Helper()
	if p := m.Pin(types.UID(uid), container); p.Mems != mems || p.CPUs != "" {
		t.Errorf("%s/%s has memory of nodes %q and CPUs %q, want %q", uid, container, p.Mems, p.CPUs, mems)
	}
}

func TestMemory(t *testing.T) {
	m := open(t, staticMemory(t, AlignNone))
	admitted(t, m, newPod("burstable", has("", "c", "memory=500Mi")))
	wantMems(t, m, "burstable", "c", "")
	admitted(t, m, newPod("a", has("", "c", "cpu=1", "memory=500Mi")))
	wantMems(t, m, "a", "c", "0")
	admitted(t, m, newPod("b", has("", "c", "cpu=1", "memory=500Mi")))
	wantMems(t, m, "b", "c", "1")
	// 220 MiB are free, but not where nobody else was promised a node for itself.
	refused(t, m, newPod("c", has("", "c", "cpu=1", "memory=200Mi")), ReasonAdmission,
		"memory requested=200Mi, free node 0: 100Mi of 600Mi, node 1: 120Mi of 620Mi", false)
	refused(t, m, newPod("huge", has("", "c", "cpu=1", "memory=2Gi")), ReasonAdmission, "requested=2Gi, free node 0: 600Mi of 600Mi", true)
	if err := m.Release("a"); err != nil {
		t.Fatal(err)
	}
	if err := m.Release("b"); err != nil {
		t.Fatal(err)
	}
	admitted(t, m, newPod("both", has("", "c", "cpu=1", "memory=1000Mi")))
	wantMems(t, m, "both", "c", "0-1")
	// The nodes are a group now, for all who come.
	refused(t, m, newPod("d", has("", "c", "cpu=1", "memory=300Mi")), ReasonAdmission, "(shared by nodes [0 1])", false)
	admitted(t, m, newPod("e", has("", "c", "cpu=1", "memory=200Mi")))
	wantMems(t, m, "e", "c", "0-1")
}

func TestMemoryHugePages(t *testing.T) {
	m := open(t, staticMemory(t, AlignSingleNode))
	admitted(t, m, newPod("a", has("", "c", "cpu=1", "memory=100Mi", "hugepages-2Mi=20Mi")))
	wantMems(t, m, "a", "c", "1")
	refused(t, m, newPod("b", has("", "c", "cpu=1", "memory=100Mi", "hugepages-2Mi=20Mi")), ReasonAffinity, "hugepages-2Mi requested=20Mi, free node 0: 16Mi of 16Mi, node 1: 12Mi of 32Mi", false)
	admitted(t, m, newPod("d", has("", "c", "cpu=1", "memory=100Mi", "hugepages-2Mi=16Mi")))
	wantMems(t, m, "d", "c", "0")
	refused(t, m, newPod("e", has("", "c", "cpu=1", "memory=1Gi")), ReasonAffinity, "single-numa-node", true)
}

// TestMemoryOfInitContainers: what they had is used again, so that the pod fits.
func TestMemoryOfInitContainers(t *testing.T) {
	c := staticMemory(t, AlignSingleNode)
	m := open(t, c)
	big := newPod("a", has("init", "i", "cpu=1", "memory=600Mi"), has("", "c", "cpu=1", "memory=400Mi"), has("", "d", "cpu=1", "memory=200Mi"))
	admitted(t, m, big)
	for _, name := range []string{"i", "c", "d"} {
		wantMems(t, m, "a", name, "0")
	}
	// The same is found again by who reads it from the file.
	m = open(t, c)
	admitted(t, m, big)
	admitted(t, m, newPod("b", has("", "c", "cpu=1", "memory=620Mi")))
	wantMems(t, m, "b", "c", "1")
	refused(t, m, newPod("e", has("", "c", "cpu=1", "memory=1Mi")), ReasonAffinity, "node 0: 0 of 600Mi, node 1: 0 of 620Mi", false)
}

// TestMemoryAndCPUs: both come from one node, though each could be had elsewhere.
func TestMemoryAndCPUs(t *testing.T) {
	c := staticMemory(t, AlignSingleNode)
	c.StaticCPUs, c.Reserved = true, parse(t, "0-1")
	m := open(t, c)
	admitted(t, m, newPod("a", has("", "c", "cpu=2", "memory=500Mi"))) // node 0
	admitted(t, m, newPod("b", has("", "c", "cpu=2", "memory=300Mi"))) // node 1, by its memory
	if p := m.Pin("b", "c"); p.Mems != "1" || p.CPUs != "8-9" {
		t.Errorf("got %+v", p)
	}
	// 4 CPUs and 100 MiB are free on node 0, 6 CPUs and 320 MiB on node 1.
	refused(t, m, newPod("e", has("", "c", "cpu=7", "memory=1Mi")), ReasonAffinity, "7 CPUs of node 0: 4 free of 8, node 1: 6 free of 8", false)
	admitted(t, m, newPod("f", has("", "c", "cpu=5", "memory=1Mi")))
	if p := m.Pin("f", "c"); p.Mems != "1" || p.CPUs != "10-14" {
		t.Errorf("got %+v", p)
	}
}
