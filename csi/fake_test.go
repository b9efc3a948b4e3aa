package csi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fake is a driver that says what it is to.
type fake struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	spec.UnimplementedControllerServer
	t      *testing.T
	socket string

	options []grpc.ServerOption

	mu      sync.Mutex
	info    *spec.GetPluginInfoResponse
	probe   *spec.ProbeResponse
	node    *spec.NodeGetInfoResponse
	nodeErr error
	caps    []spec.NodeServiceCapability_RPC_Type
	stage   func(context.Context, *spec.NodeStageVolumeRequest) error
	server  *grpc.Server
	ended   chan struct{}
}

func newFake(t *testing.T, name string) *fake {
	f := &fake{
		t: t, socket: filepath.Join(t.TempDir(), "csi.sock"), info: &spec.GetPluginInfoResponse{Name: name, VendorVersion: "1"},
		node: &spec.NodeGetInfoResponse{NodeId: "id", MaxVolumesPerNode: 3, AccessibleTopology: &spec.Topology{Segments: map[string]string{"zone": "z"}}},
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fake) start() *fake {
	f.t.Helper()
	_ = os.Remove(f.socket)
	l, err := net.Listen("unix", f.socket)
	must(f.t, err)
	f.serve(l)
	return f
}

func (f *fake) serve(l net.Listener) {
	s, ended := grpc.NewServer(f.options...), make(chan struct{})
	f.server, f.ended = s, ended
	spec.RegisterIdentityServer(s, f)
	spec.RegisterNodeServer(s, f)
	spec.RegisterControllerServer(s, f)
	go func() { defer close(ended); _ = s.Serve(l) }()
}

func (f *fake) stop() {
	if f.server != nil {
		f.server.Stop()
		<-f.ended
		f.server = nil
	}
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info, nil
}

func (f *fake) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.probe == nil {
		return nil, status.Error(codes.Unimplemented, "none")
	}
	return f.probe, nil
}

func (f *fake) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{
		{},
		{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

func (f *fake) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	rpc := &spec.ControllerServiceCapability_RPC{Type: spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &spec.ControllerGetCapabilitiesResponse{Capabilities: []*spec.ControllerServiceCapability{
		{}, {Type: &spec.ControllerServiceCapability_Rpc{Rpc: rpc}},
	}}, nil
}

func (f *fake) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, c := range f.caps {
		rpc := &spec.NodeServiceCapability_RPC{Type: c}
		out.Capabilities = append(out.Capabilities, &spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

func (f *fake) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node, f.nodeErr
}

func (f *fake) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	f.mu.Lock()
	stage := f.stage
	f.mu.Unlock()
	return &spec.NodeStageVolumeResponse{}, stage(ctx, r)
}

// heard follows the events of drivers.
func heard(t *testing.T, d *Drivers) <-chan Event {
	events := make(chan Event, 100)
	t.Cleanup(d.Subscribe(func(e Event) { events <- e }))
	return events
}

func want(t *testing.T, events <-chan Event, wanted Event) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case e := <-events:
			if e == wanted {
				return
			}
		case <-late:
			t.Fatalf("%v is not heard", wanted)
		}
	}
}

func notReady() *spec.ProbeResponse { return &spec.ProbeResponse{Ready: wrapperspb.Bool(false)} }
