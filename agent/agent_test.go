package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/source"
	"github.com/berth-node/berth/cgroups"
)

func TestLockIsForOne(t *testing.T) {
	dir := t.TempDir() + "/run"
	f, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("second: %v", err)
	}
	f.Close()
	g, err := Lock(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	g.Close()
}

func TestParseMemTotal(t *testing.T) {
	n, err := parseMemTotal([]byte("MemTotal:       24689624 kB\nMemFree:        1 kB\n"))
	if err != nil || n != 24689624<<10 {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "MemFree: 1 kB\n", "MemTotal: x kB\n"} {
		if _, err := parseMemTotal([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if n, err := hostMemory(); err != nil || n <= 0 {
		t.Errorf("this machine: %d, %v", n, err)
	}
}

func TestNodeIPs(t *testing.T) {
	ips := nodeIPs()
	if len(ips) == 0 {
		t.Fatal("none")
	}
	for _, ip := range ips {
		if _, err := netip.ParseAddr(ip); err != nil {
			t.Error(err)
		}
	}
}

func TestFilesFollowUpdates(t *testing.T) {
	f := files{of: map[types.NamespacedName]string{}}
	k := types.NamespacedName{Namespace: "default", Name: "a-node"}
	f.set(source.Update{Key: k, Pod: &corev1.Pod{}, File: "/m/a"})
	f.set(source.Update{Key: k, Pod: &corev1.Pod{}, File: "/m/b"})
	if got := f.get(k); got != "/m/b" {
		t.Errorf("got %q", got)
	}
	f.set(source.Update{Key: k})
	if got := f.get(k); got != "" {
		t.Errorf("after its removal: %q", got)
	}
}

func TestPodMetrics(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Status: corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "x", RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {Name: "y"},
		},
	}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&podMetrics{list: func() []*corev1.Pod { return []*corev1.Pod{p} }})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "," + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"berth_pods,Running": 1, "berth_pods,Failed": 0, "berth_pods_ready": 1, "berth_containers_running": 1, "berth_container_restarts_total,x,default,a": 2,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}

func TestGroupsAreForOne(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a control group")
	}
	h, err := cgroups.Open("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-test-agent-%d", os.Getpid())
	tree := cgroups.NewTree(h, root, nil)
	if _, err := lockGroups(h, tree, root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no groups yet: %v", err)
	}
	if err := tree.Setup(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	f, err := lockGroups(h, tree, root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockGroups(h, tree, root); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), root) {
		t.Errorf("second: %v", err)
	}
	if err := purgeGroups(t.Context(), h, tree, root); !errors.Is(err, ErrRunning) {
		t.Errorf("purge beside an agent: %v", err)
	}
	f.Close()
	if err := purgeGroups(t.Context(), h, tree, root); err != nil {
		t.Error(err)
	}
	if h.Exists(root) {
		t.Error("the root is left")
	}
}
