// Package podresources tells monitoring agents which container has which devices, exclusive CPUs and memory: kubelet's
// pod-resources API on a unix socket.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/internal/socket"
)

// Pods are the pods of the node.
type Pods interface {
	List() []*corev1.Pod
	Get(namespace, name string) (*corev1.Pod, bool)
}

// Config is what a [Server] works with. Devices and Pins may be nil.
type Config struct {
	Socket  string
	Pods    Pods
	Devices *device.Manager
	Pins    *pinning.Manager
	// Dynamic are the resources of claims that a container has; nil: there are none.
	Dynamic func(pod *corev1.Pod, container string) []*podsv1.DynamicResource
	Log     *slog.Logger
}

// Server is the service.
type Server struct {
	podsv1.UnimplementedPodResourcesListerServer
	cfg Config
}

// New returns a Server that does nothing before [Server.Run].
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: c}
}

// How often it may be asked, by kubelet's rule: every answer looks at all pods.
const (
	perSecond = 100
	burst     = 10
)

const dirMode = 0o750

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), dirMode); err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	l, err := socket.ListenPrivate(s.cfg.Socket, s.cfg.Log)
	if errors.Is(err, socket.ErrInUse) {
		return fmt.Errorf("serve pod resources: another agent serves %s", s.cfg.Socket)
	}
	if err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	limit := rate.NewLimiter(perSecond, burst)
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, grpcstatus.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return handle(ctx, req)
	}))
	podsv1.RegisterPodResourcesListerServer(srv, s)
	podsv1alpha1.RegisterPodResourcesListerServer(srv, &old{s: s})
	unhook := context.AfterFunc(ctx, srv.Stop)
	defer unhook()
	s.cfg.Log.Info("serving pod resources", "socket", s.cfg.Socket)
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	return nil
}

// List implements the service. Pods that are over have nothing.
func (s *Server) List(context.Context, *podsv1.ListPodResourcesRequest) (*podsv1.ListPodResourcesResponse, error) {
	out := &podsv1.ListPodResourcesResponse{}
	for _, p := range s.cfg.Pods.List() {
		if !over(p) {
			out.PodResources = append(out.PodResources, s.pod(p))
		}
	}
	return out, nil
}

// Get implements the service.
func (s *Server) Get(_ context.Context, in *podsv1.GetPodResourcesRequest) (*podsv1.GetPodResourcesResponse, error) {
	p, ok := s.cfg.Pods.Get(in.GetPodNamespace(), in.GetPodName())
	if !ok {
		return nil, grpcstatus.Errorf(codes.NotFound, "pod %s in namespace %s not found", in.GetPodName(), in.GetPodNamespace())
	}
	return &podsv1.GetPodResourcesResponse{PodResources: s.pod(p)}, nil
}

// GetAllocatableResources implements the service.
func (s *Server) GetAllocatableResources(context.Context, *podsv1.AllocatableResourcesRequest) (*podsv1.AllocatableResourcesResponse, error) {
	cpus, memory := s.cfg.Pins.Allocatable()
	return &podsv1.AllocatableResourcesResponse{Devices: devices(s.cfg.Devices.Allocatable()), CpuIds: ids(cpus), Memory: blocks(memory)}, nil
}

func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// pod is what a pod has. Init containers have nothing any more when somebody looks, but for sidecars.
func (s *Server) pod(p *corev1.Pod) *podsv1.PodResources {
	out := &podsv1.PodResources{Name: p.Name, Namespace: p.Namespace}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.Containers = append(out.Containers, s.container(p, c.Name))
		}
	}
	for i := range p.Spec.Containers {
		out.Containers = append(out.Containers, s.container(p, p.Spec.Containers[i].Name))
	}
	return out
}

func (s *Server) container(p *corev1.Pod, name string) *podsv1.ContainerResources {
	cpus, memory := s.cfg.Pins.Of(p.UID, name)
	out := &podsv1.ContainerResources{Name: name, Devices: devices(s.cfg.Devices.Of(p.UID, name)), CpuIds: ids(cpus), Memory: blocks(memory)}
	if s.cfg.Dynamic != nil {
		out.DynamicResources = s.cfg.Dynamic(p, name)
	}
	return out
}

// devices has an entry for each device, as kubelet has, since each may be near to other nodes.
func devices(groups []device.Group) []*podsv1.ContainerDevices {
	var out []*podsv1.ContainerDevices
	for _, g := range groups {
		for _, d := range g.Devices {
			out = append(out, &podsv1.ContainerDevices{ResourceName: string(g.Resource), DeviceIds: []string{d.ID}, Topology: topology(d.Nodes)})
		}
	}
	return out
}

func blocks(list []pinning.Block) []*podsv1.ContainerMemory {
	var out []*podsv1.ContainerMemory
	for _, b := range list {
		out = append(out, &podsv1.ContainerMemory{MemoryType: string(b.Resource), Size: uint64(b.Bytes), Topology: topology(b.Nodes)})
	}
	return out
}

func topology(nodes []int) *podsv1.TopologyInfo {
	if len(nodes) == 0 {
		return nil
	}
	out := &podsv1.TopologyInfo{}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, &podsv1.NUMANode{ID: int64(n)})
	}
	return out
}

func ids(list []int) []int64 {
	var out []int64
	for _, n := range list {
		out = append(out, int64(n))
	}
	return out
}

// old is the API before this one, which knows of devices only.
type old struct {
	podsv1alpha1.UnimplementedPodResourcesListerServer
	s *Server
}

// List implements the service.
func (o *old) List(ctx context.Context, _ *podsv1alpha1.ListPodResourcesRequest) (*podsv1alpha1.ListPodResourcesResponse, error) {
	all, err := o.s.List(ctx, &podsv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	out := &podsv1alpha1.ListPodResourcesResponse{}
	for _, p := range all.GetPodResources() {
		one := &podsv1alpha1.PodResources{Name: p.GetName(), Namespace: p.GetNamespace()}
		for _, c := range p.GetContainers() {
			has := &podsv1alpha1.ContainerResources{Name: c.GetName()}
			for _, d := range c.GetDevices() {
				has.Devices = append(has.Devices, &podsv1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
			}
			one.Containers = append(one.Containers, has)
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}
