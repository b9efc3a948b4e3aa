// Package devicetest is a device plugin for tests: it serves kubelet's device plugin API on a real socket, as plugins
// of vendors do, and registers again whenever the agent's socket comes into being.
package devicetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is a device plugin. Its fields are set before it runs.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer

	Resource string
	Dir      string // where the agent has its socket
	// Registry is the plugin registration directory; with one the plugin is found there, and does not register itself.
	Registry string
	Options  *pluginapi.DevicePluginOptions
	// Answer is what devices are allocated with; nil: nothing but their names, in the variable DEVICES.
	Answer func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
	// Told hears what the agent says of the registration, with room for it; nil: nobody listens.
	Told chan<- *registerapi.RegistrationStatus
	// Prefer is what the plugin would choose.
	Prefer func(available, must []string, n int) []string

	mu        sync.Mutex
	devices   []*pluginapi.Device
	changed   chan struct{} // closed when devices are others
	allocated [][]string
	started   [][]string
	refused   error
	notified  []*registerapi.RegistrationStatus
}

// Set makes these the plugin's devices. They are copied.
func (p *Plugin) Set(devices ...*pluginapi.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = nil
	for _, d := range devices {
		p.devices = append(p.devices, &pluginapi.Device{ID: d.GetID(), Health: d.GetHealth(), Topology: d.GetTopology()})
	}
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// Healthy are devices that are well.
func Healthy(ids ...string) []*pluginapi.Device {
	var out []*pluginapi.Device
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}

// On says which NUMA node a device is near to.
func On(node int64, d *pluginapi.Device) *pluginapi.Device {
	d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}
	return d
}

// Allocated are the devices that were asked for, call by call.
func (p *Plugin) Allocated() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.allocated)
}

// Started are the devices of containers that were about to start, call by call.
func (p *Plugin) Started() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.started)
}

// Refused is why the agent did not take the plugin the last time.
func (p *Plugin) Refused() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Notified is what the agent has said to a plugin of the registration directory.
func (p *Plugin) Notified() []*registerapi.RegistrationStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notified)
}

// socket is the plugin's own.
func (p *Plugin) socket() string {
	name := "devicetest-" + filepath.Base(p.Resource) + ".sock"
	if p.Registry != "" {
		return filepath.Join(p.Registry, name)
	}
	return filepath.Join(p.Dir, name)
}

// Run serves until ctx ends. Whenever the agent's socket is made again the plugin serves and registers again.
func (p *Plugin) Run(ctx context.Context) error {
	if p.Registry != "" {
		return p.serve(ctx)
	}
	if err := os.MkdirAll(p.Dir, 0o750); err != nil {
		return err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(p.Dir); err != nil {
		return err
	}
	agent := filepath.Join(p.Dir, "kubelet.sock")
	for ctx.Err() == nil {
		served, cancel := context.WithCancel(ctx)
		var wait sync.WaitGroup
		if _, err := os.Stat(agent); err == nil {
			wait.Go(func() {
				if err := p.serve(served); err != nil {
					p.refuse(err)
				}
			})
			wait.Go(func() { p.refuse(p.register(served, agent)) })
		}
		again := false
		for !again && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case e := <-w.Events:
				again = e.Name == agent && e.Has(fsnotify.Create)
			}
		}
		cancel()
		wait.Wait()
	}
	return nil
}

func (p *Plugin) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = err
}

// serve serves on a socket of the plugin's own until ctx ends.
func (p *Plugin) serve(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(p.socket()), 0o750); err != nil {
		return err
	}
	if err := os.Remove(p.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", p.socket())
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(srv, p)
	registerapi.RegisterRegistrationServer(srv, &registry{p: p})
	unhook := context.AfterFunc(ctx, srv.Stop)
	defer unhook()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (p *Plugin) register(ctx context.Context, agent string) error {
	conn, err := grpc.NewClient("unix://"+agent, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.Resource, Options: p.Options,
	}, grpc.WaitForReady(true))
	return err
}

// GetDevicePluginOptions implements the service.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	if p.Options == nil {
		return &pluginapi.DevicePluginOptions{}, nil
	}
	return p.Options, nil
}

// ListAndWatch implements the service.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		devices, changed := p.devices, p.changed
		p.mu.Unlock()
		if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// GetPreferredAllocation implements the service.
func (p *Plugin) GetPreferredAllocation(
	_ context.Context, in *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, r := range in.GetContainerRequests() {
		ids := p.Prefer(r.GetAvailableDeviceIDs(), r.GetMustIncludeDeviceIDs(), int(r.GetAllocationSize()))
		out.ContainerResponses = append(out.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, nil
}

// Allocate implements the service.
func (p *Plugin) Allocate(_ context.Context, in *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, r := range in.GetContainerRequests() {
		p.mu.Lock()
		p.allocated = append(p.allocated, r.GetDevicesIds())
		p.mu.Unlock()
		answer := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": fmt.Sprint(r.GetDevicesIds())}}
		if p.Answer != nil {
			var err error
			if answer, err = p.Answer(r.GetDevicesIds()); err != nil {
				return nil, err
			}
		}
		out.ContainerResponses = append(out.ContainerResponses, answer)
	}
	return out, nil
}

// PreStartContainer implements the service.
func (p *Plugin) PreStartContainer(
	_ context.Context, in *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, in.GetDevicesIds())
	return &pluginapi.PreStartContainerResponse{}, nil
}

// registry is the service of a plugin in the registration directory.
type registry struct {
	registerapi.UnimplementedRegistrationServer
	p *Plugin
}

// GetInfo implements the service.
func (r *registry) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.DevicePlugin, Name: r.p.Resource, Endpoint: r.p.socket(),
		SupportedVersions: []string{pluginapi.Version},
	}, nil
}

// NotifyRegistrationStatus implements the service.
func (r *registry) NotifyRegistrationStatus(
	_ context.Context, in *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.notified = append(r.p.notified, in)
	if r.p.Told != nil {
		r.p.Told <- in
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
