package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func testFacts() Facts {
	return Facts{
		Identity: Identity{
			Name: "n", Labels: map[string]string{"disk": "ssd"}, ProviderID: "example://1", Version: Version("1.2.3"), Port: 10250,
			Taints:   []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}},
			Features: map[string]bool{"VolumeBindMountOptions": true, "UserNamespacesHostNetworkSupport": true},
		},
		Machine:   Machine{ID: "m", UUID: "u", BootID: "b", Kernel: "6.1.0", OS: "Example Linux 1", Swap: 4096},
		Addresses: []string{"192.0.2.1", "2001:db8::1"},
		Resources: Resources{
			Capacity:    list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi", "pods", "110"),
			Allocatable: list("cpu", "3500m", "memory", "7Gi", "ephemeral-storage", "90Gi", "hugepages-2Mi", "1Gi", "pods", "110"),
			Devices:     list("example.com/gpu", "4"), Well: list("example.com/gpu", "3"),
		},
		Runtime: Runtime{Name: "berth", Version: "1.2.3", Status: ready(true)},
	}
}

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestBuildRegisters compares with what Kubernetes' documentation has of Nodes: "Node Status", "Well-Known Labels,
// Annotations and Taints", "Reserve Compute Resources for System Daemons" and "Manage HugePages".
func TestBuildRegisters(t *testing.T) {
	f := testFacts()
	f.Drivers = []Driver{{Name: "d", NodeID: "i", Topology: map[string]string{"zone.example.com": "a"}}}
	n := Build(&f, nil, true, testNow)
	labels := map[string]string{
		"kubernetes.io/hostname": "n", "kubernetes.io/os": "linux", "kubernetes.io/arch": runtime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH, "disk": "ssd",
	}
	if !reflect.DeepEqual(n.Labels, labels) {
		t.Errorf("labels: %v", n.Labels)
	}
	if want := map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}; !reflect.DeepEqual(n.Annotations, want) {
		t.Errorf("annotations: %v", n.Annotations)
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "k" || n.Spec.ProviderID != "example://1" {
		t.Errorf("spec: %+v", n.Spec)
	}
	addresses := []corev1.NodeAddress{
		{Type: "InternalIP", Address: "192.0.2.1"}, {Type: "InternalIP", Address: "2001:db8::1"}, {Type: "Hostname", Address: "n"},
	}
	if !slices.Equal(n.Status.Addresses, addresses) {
		t.Errorf("addresses: %v", n.Status.Addresses)
	}
	capacity := list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi", "pods", "110", "example.com/gpu", "4")
	allocatable := list("cpu", "3500m", "memory", "7Gi", "ephemeral-storage", "90Gi", "hugepages-2Mi", "1Gi", "pods", "110", "example.com/gpu", "3")
	if !equality.Semantic.DeepEqual(n.Status.Capacity, capacity) || !equality.Semantic.DeepEqual(n.Status.Allocatable, allocatable) {
		t.Errorf("capacity %v, allocatable %v", n.Status.Capacity, n.Status.Allocatable)
	}
	swap := int64(4096)
	info := corev1.NodeSystemInfo{
		MachineID: "m", SystemUUID: "u", BootID: "b", KernelVersion: "6.1.0", OSImage: "Example Linux 1",
		ContainerRuntimeVersion: "berth://1.2.3", KubeletVersion: Level + "+berth.1.2.3", OperatingSystem: "linux",
		Architecture: runtime.GOARCH, Swap: &corev1.NodeSwapStatus{Capacity: &swap},
	}
	if !equality.Semantic.DeepEqual(n.Status.NodeInfo, info) {
		t.Errorf("nodeInfo: %+v", n.Status.NodeInfo)
	}
	if n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || n.Status.Config != nil {
		t.Errorf("endpoints %+v, config %v", n.Status.DaemonEndpoints, n.Status.Config)
	}
}

func TestConditions(t *testing.T) {
	f := testFacts()
	at := metav1.NewTime(testNow)
	c := func(of, status, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: corev1.NodeConditionType(of), Status: corev1.ConditionStatus(status), Reason: reason, Message: message,
			LastHeartbeatTime: at, LastTransitionTime: at,
		}
	}
	want := []corev1.NodeCondition{
		c("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		c("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		c("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		c("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
	}
	before := Build(&f, nil, true, testNow)
	if !reflect.DeepEqual(before.Status.Conditions, want) {
		t.Fatalf("%+v", before.Status.Conditions)
	}
	// Others have theirs in the list, and only what changes has a new time.
	foreign := c("NetworkUnavailable", "False", "RouteCreated", "there is a route")
	before.Status.Conditions = append([]corev1.NodeCondition{foreign}, before.Status.Conditions...)
	f.Pressure = []Pressure{{Type: corev1.NodeMemoryPressure, Holds: true}, {Type: corev1.NodeDiskPressure}}
	f.Runtime.Status.Status.Conditions[1] = &runtimeapi.RuntimeCondition{
		Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized",
	}
	later := testNow.Add(time.Hour)
	got := Build(&f, before, false, later).Status.Conditions
	at = metav1.NewTime(later)
	want = []corev1.NodeCondition{
		foreign,
		c("MemoryPressure", "True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
		c("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		c("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		c("Ready", "False", "KubeletNotReady", "container runtime network not ready: NetworkReady=false "+
			"reason:NetworkPluginNotReady message:cni plugin not initialized"),
	}
	want[2].LastTransitionTime, want[3].LastTransitionTime = metav1.NewTime(testNow), metav1.NewTime(testNow)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	f.Runtime.Down, f.NotReady = messageDown, []string{"node is shutting down"}
	f.Resources = Resources{}
	got = Build(&f, nil, false, later).Status.Conditions
	if m := got[3].Message; m != "[container runtime is down, node is shutting down, missing node capacity for resources: cpu, memory, pods]" {
		t.Errorf("%s", m)
	}
}

// TestBuildKeeps has a Node that others have written to.
func TestBuildKeeps(t *testing.T) {
	f := testFacts()
	before := Build(&f, nil, true, testNow)
	before.Labels = map[string]string{"people": "theirs", "kubernetes.io/hostname": "other", "disk": "hdd", "topology.kubernetes.io/zone": "z"}
	before.Annotations = map[string]string{"people": "theirs", "csi.volume.kubernetes.io/nodeid": `{"gone":"x"}`}
	before.Spec.Taints, before.Spec.Unschedulable = nil, true
	before.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	before.Status.Capacity["example.com/dongle"] = resource.MustParse("2")
	before.Status.Capacity["example.com/old"] = resource.MustParse("5")
	before.Status.Capacity["hugepages-1Gi"] = resource.MustParse("1Gi")
	f.Drivers = []Driver{
		{Name: "b", NodeID: "2", Topology: map[string]string{"topology.kubernetes.io/zone": "y", "example.com/rack": "r"}},
		{Name: "a", NodeID: "1"},
	}
	f.Resources.Gone = []corev1.ResourceName{"example.com/old", "example.com/gpu"}
	n := Build(&f, before, false, testNow)
	labels := map[string]string{
		"people": "theirs", "kubernetes.io/hostname": "other", "disk": "hdd", "topology.kubernetes.io/zone": "z", "example.com/rack": "r",
	}
	if !reflect.DeepEqual(n.Labels, labels) {
		t.Errorf("labels of a node that is registered: %v", n.Labels)
	}
	if n.Annotations["csi.volume.kubernetes.io/nodeid"] != `{"a":"1","b":"2"}` || n.Annotations["people"] != "theirs" {
		t.Errorf("annotations: %v", n.Annotations)
	}
	if n.Spec.Taints != nil || !n.Spec.Unschedulable || len(n.Status.VolumesAttached) != 1 {
		t.Errorf("what is others' has changed: %+v", n)
	}
	for name, want := range map[corev1.ResourceName][2]string{
		"example.com/dongle": {"2", "2"}, "example.com/old": {"0", "0"}, "example.com/gpu": {"4", "3"}, "hugepages-2Mi": {"1Gi", "1Gi"},
	} {
		c, a := n.Status.Capacity[name], n.Status.Allocatable[name]
		if c.String() != want[0] || a.String() != want[1] {
			t.Errorf("%s: %s of %s", name, &a, &c)
		}
	}
	if _, has := n.Status.Capacity["hugepages-1Gi"]; has {
		t.Error("huge pages that the machine has no more are there")
	}
	// Another agent on a machine that was set up again.
	f.Resources.Fresh = true
	n = Build(&f, before, true, testNow)
	if q := n.Status.Capacity["example.com/dongle"]; !q.IsZero() || n.Labels["kubernetes.io/hostname"] != "n" || n.Labels["disk"] != "hdd" ||
		n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] != "true" {
		t.Errorf("taken over: %v %v %v", n.Status.Capacity, n.Labels, n.Annotations)
	}
}

func TestRuntimeFeatures(t *testing.T) {
	f := testFacts()
	f.Runtime.Status.Features = &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true}
	f.Runtime.Status.RuntimeHandlers = []*runtimeapi.RuntimeHandler{
		{Name: "z", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}, {Name: ""},
	}
	s := Build(&f, nil, true, testNow).Status
	text, err := json.Marshal([]any{s.RuntimeHandlers, s.Features, s.DeclaredFeatures})
	if err != nil {
		t.Fatal(err)
	}
	want := `[[{"name":""},{"name":"z","features":{"recursiveReadOnlyMounts":false,"userNamespaces":true}}],` +
		`{"supplementalGroupsPolicy":true},["VolumeBindMountOptions"]]`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestLargest(t *testing.T) {
	images := []Image{
		{[]string{"b"}, 1}, {[]string{"1", "2", "3", "4", "5", "6"}, 9}, {[]string{"a"}, 1}, {nil, 5},
	}
	f := testFacts()
	f.Images = Largest(images, 3)
	got := Build(&f, nil, true, testNow).Status.Images
	if len(got) != 3 || len(got[0].Names) != 5 || got[1].SizeBytes != 5 || got[2].Names[0] != "a" {
		t.Errorf("%+v", got)
	}
	if n := len(Largest(images, -1)); n != 4 {
		t.Errorf("%d of all", n)
	}
}

// TestVersion holds the version to what reads it: semantic versions, of the release whose libraries are used.
func TestVersion(t *testing.T) {
	for release, want := range map[string]string{
		"v1.2.3": "+berth.1.2.3", "dev": "+berth.dev", "": "+berth", "1.0_x..y": "+berth.1.0-x.y",
	} {
		got := Version(release)
		if got != Level+want {
			t.Errorf("%s: %s", release, got)
		}
		v, err := version.ParseSemantic(got)
		if err != nil || v.LessThan(version.MustParseSemantic(Level)) {
			t.Errorf("%s: %v, %v", got, v, err)
		}
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`k8s\.io/api v0\.(\S+)`).FindSubmatch(mod)
	if found == nil || "v1."+string(found[1]) != Level {
		t.Errorf("the libraries are of %s, and %s is what is said", found, Level)
	}
}

func TestReadMachine(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"etc/machine-id": "abc\n", "proc/sys/kernel/random/boot_id": "boot\n", "proc/sys/kernel/osrelease": "6.1\n",
		"proc/device-tree/vm,uuid": "AB-CD\x00", "usr/lib/os-release": "NAME=x\nPRETTY_NAME=\"Example \\\"1\\\"\"\n",
		"proc/meminfo": "MemTotal: 5 kB\nSwapTotal: 2 kB\n",
	} {
		write(t, root, path, text)
	}
	want := Machine{ID: "abc", UUID: "ab-cd", BootID: "boot", Kernel: "6.1", OS: `Example "1"`, Swap: 2048}
	if got := ReadMachine(root); got != want {
		t.Errorf("%+v", got)
	}
	if got := ReadMachine(t.TempDir()); got != (Machine{OS: "Linux"}) {
		t.Errorf("of nothing: %+v", got)
	}
	if m := ReadMachine("/"); m.BootID == "" || m.Kernel == "" || strings.Contains(m.OS, "\n") {
		t.Errorf("this machine: %+v", m)
	}
}

func write(t *testing.T, root, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
