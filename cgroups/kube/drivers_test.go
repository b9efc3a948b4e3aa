package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
	"github.com/berth-node/berth/cgroups/systemd"
)

// testDrivers are a tree for each driver that this machine has, with everything gone at the end.
func testDrivers(t *testing.T, fn func(t *testing.T, tree *Tree, h *cgroups.Hierarchy)) {
	t.Run(cgroups.DriverCgroupfs, func(t *testing.T) {
		h, group := cgroupstest.Group(t, cgroups.Open)
		tree := NewTree(h, group).WithOptions(Options{Unified: h.Mode() == cgroups.Unified})
		fn(t, tree, h)
	})
	t.Run(cgroups.DriverSystemd, func(t *testing.T) {
		if os.Geteuid() != 0 || !systemd.Running() {
			t.Skip("needs root and systemd: makes units")
		}
		h, err := cgroups.Open("")
		if err != nil {
			t.Fatal(err)
		}
		s, err := systemd.Open(h)
		if err != nil {
			t.Fatal(err)
		}
		tree := NewTree(h, fmt.Sprintf("/berthtest%d", os.Getpid())).WithDriver(s).WithOptions(Options{Unified: h.Mode() == cgroups.Unified, WholePercent: true})
		t.Cleanup(func() {
			if err := RemoveRoot(context.Background(), tree); err != nil {
				t.Error(err)
			}
			root, _ := tree.Root()
			for _, dir := range h.Dirs(root) {
				if kernfs.Exists(dir) {
					t.Errorf("%s was left behind", dir)
				}
			}
			if left := units(t, "berthtest*"); left != "" {
				t.Errorf("units left behind:\n%s", left)
			}
			s.Close()
		})
		fn(t, tree, h)
	})
}

func TestPodUID(t *testing.T) {
	for name, want := range map[string]types.UID{
		"pod1-2": "1-2", "kubepods-burstable-pod1_2.slice": "1-2", "kubepods-podx.slice": "x", "burstable": "", "kubepods-burstable.slice": "", "pod": "", "podx.scope": "",
	} {
		if got, ok := podUID(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

func units(t *testing.T, pattern string) string {
	t.Helper()
	// A unit that has ended is forgotten by systemd a little later.
	var out []byte
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var err error
		if out, err = exec.Command("systemctl", "list-units", "--all", "--no-legend", "--plain", pattern).Output(); err != nil {
			t.Fatal(err)
		}
		if len(out) == 0 {
			break
		}
	}
	return string(out)
}

// Groups of 300 pods come and go in random order, and somebody else's stays.
func TestManyPodsWithBothDrivers(t *testing.T) {
	testDrivers(t, func(t *testing.T, tree *Tree, h *cgroups.Hierarchy) {
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
		stranger := tree.ClassPath(corev1.PodQOSBurstable) + "/somebody"
		for _, dir := range h.Dirs(stranger) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		cases := podCases()
		var wait sync.WaitGroup
		gate := make(chan struct{}, 8)
		for _, n := range rand.Perm(300) {
			wait.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				pod := cases[n%len(cases)].pod.DeepCopy()
				pod.UID = types.UID(fmt.Sprintf("11111111-2222-4333-8444-%012d", n))
				path, err := tree.EnsurePod(pod)
				if err != nil {
					t.Error(err)
					return
				}
				if d, err := tree.Drift(tree.WantedOfPod(pod)); err != nil || len(d) != 0 {
					t.Errorf("%s: %v %v", path, d, err)
				}
				if n%3 == 0 {
					if err := tree.RemovePod(t.Context(), pod.UID, ""); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		t.Logf("%s: made, and a third removed, in %v", h.Mode(), time.Since(began))
		uids, err := tree.Pods()
		if err != nil || len(uids) != 200 {
			t.Fatalf("%d pods, %v", len(uids), err)
		}
		keep := uids[0]
		gone, err := tree.RemoveOrphans(t.Context(), func(uid types.UID) bool { return uid == keep })
		if err != nil || len(gone) != 199 {
			t.Errorf("%d orphans removed, %v", len(gone), err)
		}
		if left, err := tree.Pods(); err != nil || len(left) != 1 || left[0] != keep {
			t.Errorf("left: %v, %v", left, err)
		}
		if !h.Exists(stranger) {
			t.Error("somebody else's group is gone")
		}
		t.Logf("%s: all but one removed after %v", h.Mode(), time.Since(began))
		if err := tree.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A change of a class or a pod lasts over a reload of systemd, which writes the values that it knows back.
func TestValuesLastOverReload(t *testing.T) {
	testDrivers(t, func(t *testing.T, tree *Tree, h *cgroups.Hierarchy) {
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
		pod := podOf(container("a", list("cpu", "500m", "memory", "32Mi"), list("cpu", "700m", "memory", "64Mi")))
		pod.UID = "1-2"
		if _, err := tree.EnsurePod(pod); err != nil {
			t.Fatal(err)
		}
		pod.Spec.Containers[0].Resources.Limits = list("cpu", "333m", "memory", "128Mi")
		for range 2 {
			if _, err := tree.EnsurePod(pod); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tree.SyncQoS([]Requests{RequestsOf(pod)}); err != nil {
			t.Fatal(err)
		}
		if tree.d.Driver() == cgroups.DriverSystemd {
			if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		d, err := tree.Drift(tree.WantedOfPod(pod))
		if err != nil {
			t.Fatal(err)
		}
		if len(d) != 0 {
			t.Error(d)
		}
		class := tree.ClassPath(corev1.PodQOSBurstable)
		if h.Mode() == cgroups.Unified {
			cgroupstest.Expect(t, h, class, "cpu", "cpu.weight", "50")
		} else {
			cgroupstest.Expect(t, h, class, "cpu", "cpu.shares", "512")
		}
		if err := tree.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What is changed of the groups of all pods and of the classes is seen and corrected, and only what they were given: an
// administrator may limit a class.
func TestDriftOfClasses(t *testing.T) {
	testDrivers(t, func(t *testing.T, tree *Tree, h *cgroups.Hierarchy) {
		o := tree.Options()
		o.MemoryQoS, o.QoSReserved = true, 50
		tree = tree.WithOptions(o).WithLimits(NodeLimits{MilliCPU: 1500, Memory: 1 << 30, Pids: 1000})
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
		small := list("cpu", "500m", "memory", "32Mi")
		given, err := tree.SyncQoS([]Requests{RequestsOf(podOf(container("a", small, nil))), RequestsOf(podOf(container("a", small, small)))})
		if err != nil || len(given) != 3 {
			t.Fatal(given, err)
		}
		for _, of := range given {
			shares, least, quota, period := uint64(7777), int64(16<<20), int64(50_000), uint64(100_000)
			if d, err := tree.Drift(of); err != nil || len(d) != 0 {
				t.Errorf("%s at first: %v, %v", of.Path, d, err)
			}
			if err := h.Update(of.Path, &specs.LinuxResources{
				CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period},
				Memory: &specs.LinuxMemory{Limit: &least},
			}); err != nil {
				t.Fatal(err)
			}
			d, err := tree.Drift(of)
			if err != nil || len(d) != 2 || !strings.HasPrefix(d[0].File, "cpu.") || !strings.HasPrefix(d[1].File, "memory.") {
				t.Errorf("%s: %v, %v", of.Path, d, err)
			}
			if err := tree.Correct(of); err != nil {
				t.Error(err)
			}
			if d, err := tree.Drift(of); err != nil || len(d) != 0 {
				t.Errorf("%s corrected: %v, %v", of.Path, d, err)
			}
			switch {
			case tree.d.Driver() == cgroups.DriverSystemd:
				// An administrator would tell systemd, which writes what it knows.
			case h.Mode() == cgroups.Unified:
				cgroupstest.Expect(t, h, of.Path, "cpu", "cpu.max", "50000 100000")
			default:
				cgroupstest.Expect(t, h, of.Path, "cpu", "cpu.cfs_quota_us", "50000")
			}
		}
		if err := tree.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestScope(t *testing.T) {
	testDrivers(t, func(t *testing.T, tree *Tree, h *cgroups.Hierarchy) {
		s, ok := tree.d.(*systemd.Driver)
		if !ok {
			t.Skip("scopes are systemd's")
		}
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
		pod := podOf(container("a", nil, nil))
		pod.UID = "1-2"
		path, err := tree.EnsurePod(pod)
		if err != nil {
			t.Fatal(err)
		}
		sleep := exec.Command("sleep", "1000")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		defer sleep.Wait() // it is killed
		scope := path + "/cri-berth-" + strings.Repeat("a", 64) + ".scope"
		for range 2 {
			if err := s.StartScope(scope, sleep.Process.Pid); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", sleep.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		groups, err := cgroups.ParseProcCgroup(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, controller := range []string{"", "memory", "cpu", "name=systemd"} {
			if at, ok := groups[controller]; ok && at != scope && (controller != "" || h.Mode() == cgroups.Unified) {
				t.Errorf("%q: process is in %s", controller, at)
			}
		}
		ids, err := tree.ContainerGroups(pod)
		if err != nil || ids[strings.Repeat("a", 64)] != scope {
			t.Errorf("%v %v", ids, err)
		}
		if h.Mode() == cgroups.Unified {
			cgroupstest.Expect(t, h, scope, "pids", "pids.max", "max")
		}
		if err := s.Remove(t.Context(), scope); err != nil {
			t.Error(err)
		}
		if err := tree.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// systemd writes the OOM group of a unit whenever it applies another setting of it, and keeps none for slices.
func TestOOMGroupLastsOverChanges(t *testing.T) {
	testDrivers(t, func(t *testing.T, tree *Tree, h *cgroups.Hierarchy) {
		s, ok := tree.d.(*systemd.Driver)
		if !ok || h.Mode() != cgroups.Unified {
			t.Skip("only systemd resets it, on v2")
		}
		if err := tree.Setup(); err != nil {
			t.Fatal(err)
		}
		pod := podOf(container("a", nil, list("memory", "64Mi")))
		pod.UID, pod.Annotations = "1-2", map[string]string{OOMGroupAnnotation: string(OOMPod)}
		path, err := tree.EnsurePod(pod)
		if err != nil {
			t.Fatal(err)
		}
		cgroupstest.Expect(t, h, path, "memory", oomGroup, "1")
		var scopes []string
		for _, id := range []string{"a", "b"} {
			sleep := exec.Command("sleep", "1000")
			if err := sleep.Start(); err != nil {
				t.Fatal(err)
			}
			defer sleep.Wait() // it is killed
			scope := path + "/cri-berth-" + strings.Repeat(id, 64) + ".scope"
			if err := s.StartScope(scope, sleep.Process.Pid); err != nil {
				t.Fatal(err)
			}
			cgroupstest.Expect(t, h, path, "memory", oomGroup, "1")
			scopes = append(scopes, scope)
		}
		r := ContainerResources(pod, &pod.Spec.Containers[0], tree.opts)
		set(r, oomGroup, "1")
		if err := s.Update(scopes[0], r); err != nil {
			t.Fatal(err)
		}
		cgroupstest.Expect(t, h, scopes[0], "memory", oomGroup, "1")
		pod.Spec.Containers[0].Resources.Limits = list("memory", "96Mi", "cpu", "500m")
		if _, err := tree.EnsurePod(pod); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			// Nothing of its settings changes, but systemd applies them.
			if err := s.Announce(path, PodResources(pod, tree.opts)); err != nil {
				t.Fatal(err)
			}
			cgroupstest.Expect(t, h, path, "memory", oomGroup, "1")
		}
		cgroupstest.Expect(t, h, scopes[1], "memory", oomGroup, "0")
		if err := tree.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
