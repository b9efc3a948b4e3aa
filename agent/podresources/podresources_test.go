package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podsv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/device/devicetest"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/topology/topologytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "example.com/gpu"

type pods []*corev1.Pod

func (p pods) List() []*corev1.Pod { return p }

func (p pods) Get(namespace, name string) (*corev1.Pod, bool) {
	for _, one := range p {
		if one.Namespace == namespace && one.Name == name {
			return one, true
		}
	}
	return nil, false
}

// nothing is a runtime without containers.
type nothing struct{}

func (nothing) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (nothing) UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return nil, errors.New("no container is to be moved")
}

// asks is a container that asks for so many CPUs and devices.
func asks(name string, cpus, gpus int64) corev1.Container {
	list := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(cpus, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	if gpus > 0 {
		list[gpu] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
}

func newPod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: containers}}
}

// runs runs something until the test ends.
func runs(t *testing.T, fn func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- fn(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// managers are those of a machine with two sockets and a plugin that has devices on both.
func managers(t *testing.T) (*pinning.Manager, *device.Manager) {
	t.Helper()
	dir := t.TempDir()
	devices, err := device.New(device.Config{Dir: filepath.Join(dir, "sockets"), File: filepath.Join(dir, "devices.json"), Nodes: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	pins, err := pinning.New(pinning.Config{
		StaticCPUs: true, Reserved: cpuset.New(0, 8), Machine: topologytest.Machine(t, "two-sockets"), File: filepath.Join(dir, "pinned.json"), Runtime: nothing{},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &devicetest.Plugin{Resource: gpu, Dir: filepath.Join(dir, "sockets")}
	healthy := devicetest.Healthy("a", "b", "c")
	p.Set(devicetest.On(0, healthy[0]), devicetest.On(1, healthy[1]), healthy[2])
	runs(t, devices.Run)
	runs(t, p.Run)
	for {
		capacity, _ := devices.Resources()
		if q := capacity[gpu]; q.Value() == 3 {
			return pins, devices
		}
		<-devices.Changed()
	}
}

// serve runs the service and returns a connection to it.
func serve(t *testing.T, c Config) *grpc.ClientConn {
	t.Helper()
	if c.Socket == "" {
		c.Socket = filepath.Join(t.TempDir(), "pod-resources", "kubelet.sock")
	}
	runs(t, New(c).Run)
	conn, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// said is a pod's answer, in short.
func said(p *podsv1.PodResources) string {
	out := []string{p.GetNamespace() + "/" + p.GetName()}
	for _, c := range p.GetContainers() {
		text := fmt.Sprintf("%s cpus=%v", c.GetName(), c.GetCpuIds())
		for _, d := range c.GetDevices() {
			text += fmt.Sprintf(" %s=%v", d.GetResourceName(), d.GetDeviceIds())
			for _, n := range d.GetTopology().GetNodes() {
				text += fmt.Sprintf("@%d", n.GetID())
			}
		}
		for _, d := range c.GetDynamicResources() {
			text += " claim=" + d.GetClaimName()
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestAnswers(t *testing.T) {
	pins, devices := managers(t)
	sidecar, init := asks("side", 1, 1), asks("init", 1, 0)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	held, shared, over := newPod("held", asks("main", 2, 2)), newPod("shared", corev1.Container{Name: "main"}), newPod("over", asks("main", 1, 0))
	held.Spec.InitContainers = []corev1.Container{init, sidecar}
	over.Status.Phase = corev1.PodSucceeded
	for _, p := range []*corev1.Pod{held, shared} {
		if err := errors.Join(pins.Admit(p), devices.Admit(p, func(string) pinning.Nodes { return 0 })); err != nil {
			t.Fatal(err)
		}
	}
	conn := serve(t, Config{
		Pods: pods{held, shared, over}, Pins: pins, Devices: devices,
		Dynamic: func(p *corev1.Pod, container string) []*podsv1.DynamicResource {
			if p != held || container != "main" {
				return nil
			}
			return []*podsv1.DynamicResource{{ClaimName: "claim", ClaimNamespace: "default"}}
		},
	})
	client := podsv1.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &podsv1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list.GetPodResources() {
		got = append(got, said(p))
	}
	if len(got) != 2 || got[1] != "default/shared; main cpus=[]" {
		t.Errorf("%q", got)
	}
	// Which devices they are is the manager's to choose; that nobody has another's is said by all of them being there.
	for _, want := range []string{"default/held; side cpus=[", "main cpus=[", "=[a]@0", "=[b]@1", "=[c]", "claim=claim"} {
		if !strings.Contains(got[0], want) {
			t.Errorf("%q has no %q", got[0], want)
		}
	}
	if strings.Contains(got[0], "init") {
		t.Errorf("an init container that is over has something: %q", got[0])
	}
	one, err := client.Get(t.Context(), &podsv1.GetPodResourcesRequest{PodNamespace: "default", PodName: "held"})
	if err != nil || said(one.GetPodResources()) != got[0] {
		t.Errorf("%q, %v", said(one.GetPodResources()), err)
	}
	if _, err := client.Get(t.Context(), &podsv1.GetPodResourcesRequest{PodNamespace: "other", PodName: "held"}); grpcstatus.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not there: %v", err)
	}
	all, err := client.GetAllocatableResources(t.Context(), &podsv1.AllocatableResourcesRequest{})
	if err != nil || len(all.GetCpuIds()) != 14 || len(all.GetDevices()) != 3 {
		t.Errorf("allocatable: %v, %v", all, err)
	}
	before, err := podsv1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &podsv1alpha1.ListPodResourcesRequest{})
	if err != nil || len(before.GetPodResources()) != 2 || len(before.GetPodResources()[0].GetContainers()) != 2 || len(before.GetPodResources()[0].GetContainers()[1].GetDevices()) != 2 {
		t.Errorf("v1alpha1: %v, %v", before, err)
	}
}

// TestWithoutManagers is a node that gives nothing to anybody.
func TestWithoutManagers(t *testing.T) {
	conn := serve(t, Config{Pods: pods{newPod("a", asks("main", 1, 0))}})
	client := podsv1.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &podsv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 || said(list.GetPodResources()[0]) != "default/a; main cpus=[]" {
		t.Errorf("%v, %v", list, err)
	}
	if all, err := client.GetAllocatableResources(t.Context(), &podsv1.AllocatableResourcesRequest{}); err != nil || len(all.GetCpuIds())+len(all.GetDevices())+len(all.GetMemory()) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestTooOften asks more often than is answered.
func TestTooOften(t *testing.T) {
	client := podsv1.NewPodResourcesListerClient(serve(t, Config{Pods: pods{}}))
	for range 1000 {
		codesOf := make(chan codes.Code)
		const many = 10 * burst
		for range many {
			go func() {
				_, err := client.List(t.Context(), &podsv1.ListPodResourcesRequest{})
				codesOf <- grpcstatus.Code(err)
			}()
		}
		refused := false
		for range many {
			switch c := <-codesOf; c {
			case codes.OK:
			case codes.ResourceExhausted:
				refused = true
			default:
				t.Errorf("answered with %s", c)
			}
		}
		if refused {
			return
		}
	}
	t.Error("it answers as often as it is asked")
}

// TestSocket finds the socket of an agent that was killed, and that of one that lives.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "kubelet.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	client := podsv1.NewPodResourcesListerClient(serve(t, Config{Socket: path, Pods: pods{}}))
	if _, err := client.List(t.Context(), &podsv1.ListPodResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{Socket: path, Pods: pods{}}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another agent serves "+path) {
		t.Errorf("a second agent: %v", err)
	}
	if _, err := client.List(t.Context(), &podsv1.ListPodResourcesRequest{}); err != nil {
		t.Errorf("the first is cut off: %v", err)
	}
	// Who removes the socket does not end the service.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := podsv1.NewPodResourcesListerClient(conn).List(t.Context(), &podsv1.ListPodResourcesRequest{}); err != nil {
		t.Errorf("by the socket made again: %v", err)
	}
}
