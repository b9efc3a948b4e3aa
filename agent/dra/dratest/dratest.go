// Package dratest is a driver of dynamic resources for tests: it serves kubelet's API for drivers on a real socket in
// the plugin registration directory, and writes CDI files for what it prepares, as drivers of vendors do.
package dratest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Device is one that a claim has.
type Device struct {
	Request, Pool, Name string
	// Env and Node are what the container gets: variables (NAME=VALUE), and the path at which it has the node's
	// /dev/fuse.
	Env  []string
	Node string
}

// Driver is a driver. Its fields are set before it runs.
type Driver struct {
	drav1.UnimplementedDRAPluginServer
	healthv1.UnimplementedDRAResourceHealthServer

	Name     string
	Registry string   // the plugin registration directory
	CDI      string   // where CDI files are to be; "": the driver has none
	Services []string // that it registers with; none: v1 of both
	// Devices are those of a claim. A driver of a cluster would ask the API server for them.
	Devices func(*drav1.Claim) []Device
	// Answer is asked before each call for a claim ("prepare" or "unprepare"); an error is the answer for that claim.
	// nil: all is well.
	Answer func(ctx context.Context, call string, c *drav1.Claim) error

	mu      sync.Mutex
	calls   []string
	health  []*healthv1.DeviceHealth
	changed chan struct{} // closed when health is otherwise
	told    []*registerapi.RegistrationStatus
}

// Calls are what was asked of the driver, such as "prepare default/a".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Told is what the agent has said of the registration.
func (d *Driver) Told() []*registerapi.RegistrationStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.told)
}

// SetHealth says how devices are from now on.
func (d *Driver) SetHealth(all ...*healthv1.DeviceHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = all
	if d.changed != nil {
		close(d.changed)
	}
	d.changed = make(chan struct{})
}

func (d *Driver) services() []string {
	if len(d.Services) == 0 {
		return []string{drav1.DRAPluginService, healthv1.DRAResourceHealthService}
	}
	return d.Services
}

func (d *Driver) socket() string { return filepath.Join(d.Registry, d.Name+"-reg.sock") }

// Run serves until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	if err := os.MkdirAll(d.Registry, 0o750); err != nil {
		return err
	}
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", d.socket())
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	for _, s := range d.services() {
		switch s {
		case drav1.DRAPluginService:
			drav1.RegisterDRAPluginServer(srv, d)
		case drav1beta1.DRAPluginService:
			drav1beta1.RegisterDRAPluginServer(srv, drav1beta1.V1ServerWrapper{DRAPluginServer: d})
		case healthv1.DRAResourceHealthService:
			healthv1.RegisterDRAResourceHealthServer(srv, d)
		case healthv1alpha1.DRAResourceHealthService:
			healthv1alpha1.RegisterDRAResourceHealthServer(srv, healthv1.V1ServerWrapper{Server: d})
		}
	}
	registerapi.RegisterRegistrationServer(srv, &registry{d: d})
	unhook := context.AfterFunc(ctx, srv.Stop)
	defer unhook()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (d *Driver) asked(ctx context.Context, call string, c *drav1.Claim) error {
	d.mu.Lock()
	d.calls = append(d.calls, call+" "+c.GetNamespace()+"/"+c.GetName())
	d.mu.Unlock()
	if d.Answer == nil {
		return nil
	}
	return d.Answer(ctx, call, c)
}

// File is the CDI file of a claim.
func (d *Driver) File(uid string) string { return filepath.Join(d.CDI, d.Name+"-"+uid+".json") }

func (d *Driver) kind() string { return d.Name + "/claim" }

// NodePrepareResources implements the service.
func (d *Driver) NodePrepareResources(ctx context.Context, in *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range in.GetClaims() {
		one := &drav1.NodePrepareResourceResponse{}
		out.Claims[c.GetUid()] = one
		if err := d.asked(ctx, "prepare", c); err != nil {
			one.Error = err.Error()
			continue
		}
		devices := d.Devices(c)
		if d.CDI != "" {
			if err := d.write(c, devices); err != nil {
				one.Error = err.Error()
				continue
			}
		}
		for _, dev := range devices {
			got := &drav1.Device{RequestNames: []string{dev.Request}, PoolName: dev.Pool, DeviceName: dev.Name}
			if d.CDI != "" {
				got.CdiDeviceIds = []string{d.kind() + "=" + c.GetUid() + "-" + dev.Name}
			}
			one.Devices = append(one.Devices, got)
		}
	}
	return out, nil
}

func (d *Driver) write(c *drav1.Claim, devices []Device) error {
	var list []any
	for _, dev := range devices {
		edits := map[string]any{"env": dev.Env}
		if dev.Node != "" {
			edits["deviceNodes"] = []any{map[string]any{"path": dev.Node, "hostPath": "/dev/fuse", "permissions": "rw"}}
		}
		list = append(list, map[string]any{"name": c.GetUid() + "-" + dev.Name, "containerEdits": edits})
	}
	data, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": d.kind(), "devices": list})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.CDI, 0o755); err != nil {
		return err
	}
	// Runtimes may read the directory at any time.
	file := d.File(c.GetUid())
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// NodeUnprepareResources implements the service.
func (d *Driver) NodeUnprepareResources(ctx context.Context, in *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range in.GetClaims() {
		one := &drav1.NodeUnprepareResourceResponse{}
		out.Claims[c.GetUid()] = one
		err := d.asked(ctx, "unprepare", c)
		if err == nil && d.CDI != "" {
			if err = os.Remove(d.File(c.GetUid())); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		if err != nil {
			one.Error = err.Error()
		}
	}
	return out, nil
}

// NodeWatchResources implements the service.
func (d *Driver) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest, s grpc.ServerStreamingServer[healthv1.NodeWatchResourcesResponse]) error {
	for {
		d.mu.Lock()
		if d.changed == nil {
			d.changed = make(chan struct{})
		}
		all, changed := d.health, d.changed
		d.mu.Unlock()
		if err := s.Send(&healthv1.NodeWatchResourcesResponse{Devices: all}); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// registry is the service of a plugin in the registration directory.
type registry struct {
	registerapi.UnimplementedRegistrationServer
	d *Driver
}

// GetInfo implements the service.
func (r *registry) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: r.d.Name, Endpoint: r.d.socket(), SupportedVersions: r.d.services()}, nil
}

// NotifyRegistrationStatus implements the service.
func (r *registry) NotifyRegistrationStatus(_ context.Context, in *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.told = append(r.d.told, in)
	return &registerapi.RegistrationStatusResponse{}, nil
}
