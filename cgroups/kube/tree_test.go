package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
)

func testTree(t *testing.T) (*Tree, *cgroups.Hierarchy, string) {
	h, group := cgroupstest.Group(t, cgroups.Open)
	tree := NewTree(h, group)
	for range 2 {
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
	}
	return tree, h, group
}

// What the kernel has of every class is read back from its files.
func TestTreeOfEachClass(t *testing.T) {
	tree, h, group := testTree(t)
	for _, c := range podCases() {
		pod := c.pod
		pod.UID = types.UID(fmt.Sprintf("uid-%p", pod))
		for range 2 {
			path, err := tree.EnsurePod(pod)
			if err != nil || path != PodPath(group, pod.UID, c.class) {
				t.Fatalf("%s: %q, %v", c.name, path, err)
			}
		}
		path := tree.PodPath(pod)
		u, err := h.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(c.memory); c.memory != 0 && u.Memory.Limit != want || c.memory == 0 && u.Memory.Limit != cgroups.NoLimit {
			t.Errorf("%s: memory limit %d, want %d", c.name, u.Memory.Limit, want)
		}
		if h.Mode() == cgroups.Unified {
			quota := "max 100000"
			if c.quota != 0 {
				quota = fmt.Sprintf("%d 100000", c.quota)
			}
			cgroupstest.Expect(t, h, path, "cpu", "cpu.max", quota)
			continue
		}
		quota := int64(-1)
		if c.quota != 0 {
			quota = c.quota
		}
		cgroupstest.Expect(t, h, path, "cpu", "cpu.cfs_quota_us", fmt.Sprint(quota))
		cgroupstest.Expect(t, h, path, "cpu", "cpu.shares", fmt.Sprint(c.shares))
	}
	besteffort := QoSPath(group, corev1.PodQOSBestEffort)
	burstable := QoSPath(group, corev1.PodQOSBurstable)
	pods := []Requests{
		RequestsOf(podOf(container("a", list("cpu", "300m"), nil))), RequestsOf(podOf(container("a", list("cpu", "1700m"), nil))),
		RequestsOf(podOf(container("a", nil, nil))),
	}
	if _, err := tree.SyncQoS(pods); err != nil {
		t.Fatal(err)
	}
	if h.Mode() == cgroups.Unified {
		cgroupstest.Expect(t, h, besteffort, "cpu", "cpu.weight", "1")
		cgroupstest.Expect(t, h, burstable, "cpu", "cpu.weight", "200")
	} else {
		cgroupstest.Expect(t, h, besteffort, "cpu", "cpu.shares", "2")
		cgroupstest.Expect(t, h, burstable, "cpu", "cpu.shares", "2048")
	}
}

// What --qos-reserved has limited the classes to goes, and what else somebody has given them stays.
func TestUnreserve(t *testing.T) {
	tree, h, group := testTree(t)
	tree = tree.WithOptions(Options{QoSReserved: 100, Unified: h.Mode() == cgroups.Unified}).WithLimits(NodeLimits{Memory: 1 << 30})
	if _, err := tree.SyncQoS([]Requests{RequestsOf(podOf(container("a", list("memory", "256Mi"), list("memory", "512Mi"))))}); err != nil {
		t.Fatal(err)
	}
	limit := func(q corev1.PodQOSClass) uint64 {
		u, err := h.Stat(QoSPath(group, q))
		if err != nil {
			t.Fatal(err)
		}
		return u.Memory.Limit
	}
	if got := limit(corev1.PodQOSBestEffort); got != 768<<20 {
		t.Fatalf("BestEffort is limited to %d, want what the request leaves", got)
	}
	for range 2 {
		if err := tree.Unreserve(); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		if got := limit(q); got != cgroups.NoLimit {
			t.Errorf("%s is still limited to %d", q, got)
		}
	}
}

func TestTreeOfManyPodsInRandomOrder(t *testing.T) {
	tree, h, group := testTree(t)
	stranger := group + "/kubepods/stranger"
	cgroupstest.Create(t, h, stranger, nil)
	var want []types.UID
	var pods []*corev1.Pod
	for i, c := range podCases() {
		for n := range 4 {
			p := c.pod.DeepCopy()
			p.UID = types.UID(fmt.Sprintf("%d-%d", i, n))
			pods = append(pods, p)
			want = append(want, p.UID)
		}
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	for _, p := range pods {
		path, err := tree.EnsurePod(p)
		if err != nil {
			t.Fatal(err)
		}
		cgroupstest.Create(t, h, path+"/container", nil)
	}
	slices.Sort(want)
	if got, err := tree.Pods(); err != nil || !slices.Equal(got, want) {
		t.Errorf("pods = %v, %v, want %v", got, err, want)
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	for i, p := range pods {
		path := tree.PodPath(p)
		if i%2 == 0 {
			path = "" // the agent has forgotten where it was
		}
		if err := tree.RemovePod(t.Context(), p.UID, path); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tree.Pods(); err != nil || len(got) != 0 {
		t.Errorf("left: %v, %v", got, err)
	}
	if !h.Exists(stranger) {
		t.Error("somebody else's group is gone")
	}
}

func TestDrift(t *testing.T) {
	tree, h, _ := testTree(t)
	for i, c := range podCases() {
		c.pod.UID = types.UID(fmt.Sprintf("drift-%d", i))
		path, err := tree.EnsurePod(c.pod)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := tree.Drift(tree.WantedOfPod(c.pod)); err != nil || len(d) != 0 {
			t.Errorf("%s: %v, %v", c.name, d, err)
		}
		pids, shares := int64(5), uint64(7777)
		if err := h.Update(path, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Pids: &specs.LinuxPids{Limit: &pids}}); err != nil {
			t.Fatal(err)
		}
		if d, err := tree.Drift(tree.WantedOfPod(c.pod)); err != nil || len(d) != 1 || !strings.HasPrefix(d[0].File, "cpu.") {
			t.Errorf("%s: %v, %v", c.name, d, err)
		} else if err := tree.Correct(tree.WantedOfPod(c.pod)); err != nil {
			t.Error(err)
		}
		if d, err := tree.Drift(tree.WantedOfPod(c.pod)); err != nil || len(d) != 0 {
			t.Errorf("%s corrected: %v, %v", c.name, d, err)
		}
	}
	lost := podOf(container("a", nil, nil))
	if _, err := tree.Drift(tree.WantedOfPod(lost)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("drift of a pod without a group: %v", err)
	}
}

func TestContainerGroup(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"", ""},
		{"other", ""},
		{"other abc", "abc"},
		{"cri-containerd-abc.scope", "cri-containerd-abc.scope"},
		{"crio-conmon-abc crio-abc", "crio-abc"},
		{"crio-conmon-abc.scope crio-abc.scope", "crio-abc.scope"},
		{"crio-conmon-abc", ""},
	} {
		if got, ok := ContainerGroup(strings.Fields(c.names), "abc"); got != c.want || ok != (c.want != "") {
			t.Errorf("of %q: %q, %t, want %q", c.names, got, ok, c.want)
		}
	}
}
