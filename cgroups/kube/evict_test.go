package kube

import (
	"errors"
	"io/fs"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
)

// TestKillContainers has the containers of a pod killed, and what watches them live on, as does what is in no group of
// the pod.
func TestKillContainers(t *testing.T) {
	h, group := cgroupstest.Group(t, cgroups.Open)
	tree := NewTree(h, group).WithOptions(Options{Unified: h.Mode() == cgroups.Unified})
	if err := tree.Setup(); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	pod.UID = "u"
	for _, read := range []MemoryReading{cgroups.WorkingSet, cgroups.Unreclaimable} {
		if _, err := MemoryOf(tree, pod, read); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("memory of a pod without a group: %v", err)
		}
	}
	if _, err := Tasks(tree, pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tasks of a pod without a group: %v", err)
	}
	path, err := tree.EnsurePod(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"keeper", "a", "b"} {
		cgroupstest.Create(t, h, path+"/"+id, nil)
		cgroupstest.Process(t, h, path+"/"+id, "sleep 1000 & wait")
	}
	if n, err := Tasks(tree, pod); err != nil || n < 3 {
		t.Errorf("%d tasks, %v", n, err)
	}
	all, err := MemoryOf(tree, pod, cgroups.WorkingSet)
	each, err2 := MemoryOfContainers(tree, pod, cgroups.WorkingSet)
	if err != nil || err2 != nil || all == 0 || len(each) != 3 {
		t.Errorf("the pod has %d, of them %v: %v, %v", all, each, err, err2)
	}
	if err := KillContainers(t.Context(), tree, pod, []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	for id, alive := range map[string]bool{"a": false, "b": false, "keeper": true} {
		if pids, err := h.Pids(path + "/" + id); err != nil || len(pids) > 0 != alive {
			t.Errorf("%s has processes %v, %v", id, pids, err)
		}
	}
	cgroupstest.Create(t, h, path+"/crio-c", nil)
	cgroupstest.Process(t, h, path+"/crio-c", "sleep 1000 & wait")
	beside := tree.ClassPath(corev1.PodQOSGuaranteed) + "/other"
	cgroupstest.Create(t, h, beside, nil)
	cgroupstest.Process(t, h, beside, "sleep 1000 & wait")
	for _, uid := range []types.UID{"../other", "u/..", "/"} {
		if err := tree.KillIn(t.Context(), uid, []string{"other"}); err == nil {
			t.Errorf("%q was taken for a UID", uid)
		}
	}
	if err := tree.KillIn(t.Context(), "none", []string{"keeper"}); err != nil {
		t.Errorf("in a pod that is not there: %v", err)
	}
	if err := tree.KillIn(t.Context(), "u", []string{"gone", "", "other", "c"}); err != nil {
		t.Errorf("kill in pod: %v", err)
	}
	for group, alive := range map[string]bool{path + "/crio-c": false, path + "/keeper": true, beside: true} {
		if pids, err := h.Pids(group); err != nil || len(pids) > 0 != alive {
			t.Errorf("%s has processes %v, %v", group, pids, err)
		}
	}
	if err := KillContainers(t.Context(), tree, pod, []string{"keeper", "gone"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}
