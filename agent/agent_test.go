package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
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

// TestRootIsForOne: agents whose run directories differ do not share a root directory.
func TestRootIsForOne(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a", "root")
	first, err := LockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockRoot(root); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), root) {
		t.Error(err)
	}
	first()
	next, err := LockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	// What has another directory's name is another one.
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	other, err := LockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	next()
	if _, err := LockRoot(root); !errors.Is(err, ErrRunning) {
		t.Error(err)
	}
	other()
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
	f.set(desired.Update{Key: k, Pod: &corev1.Pod{}, File: "/m/a"})
	f.set(desired.Update{Key: k, Pod: &corev1.Pod{}, File: "/m/b"})
	if got := f.get(k); got != "/m/b" {
		t.Errorf("got %q", got)
	}
	f.set(desired.Update{Key: k})
	if got := f.get(k); got != "" {
		t.Errorf("after its removal: %q", got)
	}
}

// Limits by --qos-reserved go at the first start without it, and not those that an administrator has given a class.
func TestReservedMemoryIsSettled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a control group")
	}
	h, err := cgroups.Open("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-test-reserved-%d", os.Getpid())
	c := config.Config{Place: config.Place{RootDir: t.TempDir()}, Resources: config.Resources{
		EnforceAllocatable: []string{config.EnforcePods}, QoSReserved: map[string]string{"memory": "50%"},
	}}
	log := slog.New(slog.DiscardHandler)
	base := kube.NewTree(h, root).WithLimits(kube.NodeLimits{Memory: 1 << 30})
	reserving := base.WithOptions(kube.Options{QoSReserved: 50})
	if err := base.Setup(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	besteffort := base.ClassPath(corev1.PodQOSBestEffort)
	limit := func() uint64 {
		u, err := h.Stat(besteffort)
		if err != nil {
			t.Fatal(err)
		}
		return u.Memory.Limit
	}
	admins := int64(64 << 20)
	if err := h.Update(besteffort, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &admins}}); err != nil {
		t.Fatal(err)
	}
	if err := settleReserved(&c, base, log); err != nil || limit() != uint64(admins) {
		t.Fatalf("an administrator's limit became %d, %v", limit(), err)
	}
	for range 2 { // a start may be cut off anywhere and made again
		if err := settleReserved(&c, reserving, log); err != nil {
			t.Fatal(err)
		}
		if _, err := reserving.SyncQoS(nil); err != nil || limit() != 1<<30 {
			t.Fatalf("limit %d, %v", limit(), err)
		}
	}
	for range 2 {
		if err := settleReserved(&c, base, log); err != nil || limit() != cgroups.NoLimit {
			t.Errorf("without the setting the limit is %d, %v", limit(), err)
		}
	}
}

// The static policy takes what is reserved for the system and for daemons, as kubelet does, and the machine is asked
// before anything of it is changed.
func TestCheckMachine(t *testing.T) {
	c := config.Default()
	c.CPUManagerPolicy = "static"
	div := config.Division{System: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}, Kube: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("800m")}}
	if p, err := pinningConfig(&c, div); err != nil || p.ReservedCPUs != 2 {
		t.Errorf("of 1100m %d CPUs are reserved, %v", p.ReservedCPUs, err)
	}
	if err := Check(c); err == nil || !strings.Contains(err.Error(), "--system-reserved") || !strings.Contains(err.Error(), "--reserved-cpus") {
		t.Errorf("without a reservation: %v", err)
	}
	if runtime.NumCPU() > 1 {
		c.SystemReserved, c.KubeReserved = map[string]string{"cpu": "100m"}, map[string]string{"cpu": "200m"}
		if err := Check(c); err != nil {
			t.Errorf("with a reservation of both: %v", err)
		}
	}
	c = config.Default()
	c.EnforceAllocatable, c.SystemReservedCgroup = []string{config.EnforceSystemReserved}, "/no/such.slice"
	if err := Check(c); err == nil || !strings.Contains(err.Error(), "--system-reserved-cgroup /no/such.slice") {
		t.Errorf("a group that is not there: %v", err)
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
	tree := kube.NewTree(h, root)
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
