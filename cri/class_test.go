package cri

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// blockDevice is a block device of this machine and its number.
func blockDevice(t *testing.T) (path, number string) {
	t.Helper()
	all, err := filepath.Glob("/sys/block/*/dev")
	if err != nil {
		t.Fatal(err)
	}
	// Others make and remove volumes and loop devices meanwhile.
	slices.SortStableFunc(all, func(a, b string) int { return strings.Compare(madeName(a), madeName(b)) })
	for _, f := range all {
		path := filepath.Join("/dev", filepath.Base(filepath.Dir(f)))
		b, err := os.ReadFile(f)
		if _, serr := os.Stat(path); err == nil && serr == nil {
			return path, strings.TrimSpace(string(b))
		}
	}
	t.Skip("no block device is here")
	return "", ""
}

// madeName is empty for a disk, and says of what kind a device is that programs make.
func madeName(dev string) string {
	for _, kind := range []string{"dm-", "loop", "md", "nbd", "ram", "zram"} {
		if strings.HasPrefix(filepath.Base(filepath.Dir(dev)), kind) {
			return kind
		}
	}
	return ""
}

// TestClasses: pods name settings that the administrator has made, by their annotations or through a plugin.
func TestClasses(t *testing.T) {
	n := pluggedNode(t)
	path, number := blockDevice(t)
	n.cfg.BlockIOFile = filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(n.cfg.BlockIOFile, []byte("Classes: {gold: [{Devices: ["+path+"], ThrottleReadBps: 50M}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.plug(t, "classes")
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) {
		cfg.Annotations = map[string]string{"blockio.resources.beta.kubernetes.io/container.main": "gold", "blockio.resources.beta.kubernetes.io/container.bad": "silver"}
	})
	limit := func(id string) string {
		file, want := "blkio/"+n.containerRecord(t, id).Cgroup+"/blkio.throttle.read_bps_device", number+" 50000000"
		if h.Mode() == cgroups.Unified {
			file, want = n.containerRecord(t, id).Cgroup+"/io.max", number+" rbps=50000000 wbps=max riops=max wiops=max"
		}
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if os.IsNotExist(err) {
			t.Skipf("%s: this kernel does not have it", file)
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(strings.TrimSpace(string(b)), want, "limited", 1)
	}
	main := n.run(t, pod, "main", nil, "sleep", "1000")
	if got := limit(main); got != "limited" {
		t.Errorf("by the pod: got %q", got)
	}
	update := &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: main, Linux: update}); err != nil {
		t.Error(err)
	}
	if got := limit(main); got != "limited" {
		t.Errorf("after an update: got %q", got)
	}
	// An update before the start does not take it away either.
	early, err := n.tryCreate(pod, "early", annotated("io.kubernetes.cri.blockio-class", "gold"), "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: early, Linux: update}); err != nil {
		t.Error(err)
	}
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: early}); err != nil {
		t.Fatal(err)
	}
	if got := limit(early); got != "limited" {
		t.Errorf("by the container: got %q", got)
	}
	if got := limit(n.run(t, pod, "plugged", annotated("test/do", "class"), "sleep", "1000")); got != "limited" {
		t.Errorf("by a plugin: got %q", got)
	}
	if got := limit(n.run(t, pod, "none", nil, "sleep", "1000")); got != "" {
		t.Errorf("without a class: got %q", got)
	}
	for name, tt := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		want   string
	}{
		"bad": {nil, "has gold"},
		"rdt": {annotated("io.kubernetes.cri.rdt-class", "gold"), "resctrl"},
	} {
		if _, err := n.tryRun(pod, name, tt.change, "true"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
