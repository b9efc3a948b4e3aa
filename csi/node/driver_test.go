package node

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berth-node/berth/csi"
)

const driverName = "dir.test.berth.node"

// dirDriver has directories as volumes, by bind mounts, and holds its callers to the order that the specification has.
type dirDriver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	spec.UnimplementedControllerServer
	t      testing.TB
	dir    string
	socket string
	node   []spec.NodeServiceCapability_RPC_Type
	ctrl   []spec.ControllerServiceCapability_RPC_Type

	mu       sync.Mutex
	server   *grpc.Server
	ended    chan struct{}
	calls    []string
	requests []proto.Message
	attached map[string]bool
	sizes    map[string]int64
	// before and after a call's effect; an error is the answer instead.
	before, after func(ctx context.Context, method string) error
}

func newDirDriver(t testing.TB) *dirDriver {
	dir := t.TempDir()
	d := &dirDriver{
		t: t, dir: dir, socket: filepath.Join(dir, "csi.sock"), attached: map[string]bool{}, sizes: map[string]int64{},
		node: []spec.NodeServiceCapability_RPC_Type{
			spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_EXPAND_VOLUME,
			spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
	}
	must(t, os.MkdirAll(filepath.Join(dir, "vols"), 0o755))
	t.Cleanup(d.stop)
	return d
}

func (d *dirDriver) start() {
	d.t.Helper()
	_ = os.Remove(d.socket)
	l, err := net.Listen("unix", d.socket)
	must(d.t, err)
	s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	spec.RegisterIdentityServer(s, d)
	spec.RegisterNodeServer(s, d)
	spec.RegisterControllerServer(s, d)
	ended := make(chan struct{})
	d.mu.Lock()
	d.server, d.ended = s, ended
	d.mu.Unlock()
	go func() { defer close(ended); _ = s.Serve(l) }()
}

// stop ends the driver as a crash does: with its connections.
func (d *dirDriver) stop() {
	d.mu.Lock()
	s, ended := d.server, d.ended
	d.server = nil
	d.mu.Unlock()
	if s != nil {
		s.Stop()
		<-ended
	}
}

// crash is stop, from within a call.
func (d *dirDriver) crash(ctx context.Context) error {
	d.mu.Lock()
	s := d.server
	d.server = nil
	d.mu.Unlock()
	if s != nil {
		go s.Stop()
	}
	<-ctx.Done()
	return status.Error(codes.Internal, "crashed")
}

func (d *dirDriver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	act := !strings.Contains(method, "Get") && method != "Probe"
	d.mu.Lock()
	if act {
		d.calls = append(d.calls, method)
		d.requests = append(d.requests, req.(proto.Message))
	}
	before, after := d.before, d.after
	d.mu.Unlock()
	if before != nil && act {
		if err := before(ctx, method); err != nil {
			return nil, err
		}
	}
	answer, err := handler(ctx, req)
	if err == nil && after != nil && act {
		err = after(ctx, method)
	}
	return answer, err
}

func (d *dirDriver) fail(before, after func(ctx context.Context, method string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before, d.after = before, after
}

// said are the calls since it was asked last.
func (d *dirDriver) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := strings.Join(d.calls, " ")
	d.calls, d.requests = nil, nil
	return out
}

func (d *dirDriver) last(method string) proto.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, call := range slices.Backward(d.calls) {
		if call == method {
			return d.requests[i]
		}
	}
	return nil
}

func (d *dirDriver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

func (d *dirDriver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *dirDriver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	service := &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_CONTROLLER_SERVICE}
	return &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{{Type: &spec.PluginCapability_Service_{Service: service}}}}, nil
}

func (d *dirDriver) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	out := &spec.ControllerGetCapabilitiesResponse{}
	for _, c := range d.ctrl {
		rpc := &spec.ControllerServiceCapability_RPC{Type: c}
		out.Capabilities = append(out.Capabilities, &spec.ControllerServiceCapability{Type: &spec.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

func (d *dirDriver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, c := range d.node {
		rpc := &spec.NodeServiceCapability_RPC{Type: c}
		out.Capabilities = append(out.Capabilities, &spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

func (d *dirDriver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: "this-node", MaxVolumesPerNode: 7}, nil
}

func (d *dirDriver) stages() bool {
	return slices.Contains(d.node, spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

func (d *dirDriver) source(id string) string { return filepath.Join(d.dir, "vols", id) }

// below says whether something is mounted in the agent's directories that is of a volume.
func (d *dirDriver) mounted(id string) []string {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); strings.HasSuffix(f[3], d.source(id)) {
			out = append(out, f[4])
		}
	}
	return out
}

func bind(from, to string) error {
	if mountedAt(to) {
		return nil
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func (d *dirDriver) ControllerPublishVolume(_ context.Context, r *spec.ControllerPublishVolumeRequest) (*spec.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached[r.VolumeId] = true
	return &spec.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "x"}}, nil
}

func (d *dirDriver) ControllerUnpublishVolume(_ context.Context, r *spec.ControllerUnpublishVolumeRequest) (*spec.ControllerUnpublishVolumeResponse, error) {
	if len(d.mounted(r.VolumeId)) > 0 {
		d.t.Errorf("%s is detached with mounts", r.VolumeId)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attached, r.VolumeId)
	return &spec.ControllerUnpublishVolumeResponse{}, nil
}

func (d *dirDriver) NodeStageVolume(_ context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	if _, err := os.Stat(d.source(r.VolumeId)); err != nil {
		return nil, status.Error(codes.NotFound, "no such volume, whose password is "+r.Secrets["password"])
	}
	if r.StagingTargetPath == "" {
		d.t.Error("no staging path")
	}
	return &spec.NodeStageVolumeResponse{}, bind(d.source(r.VolumeId), r.StagingTargetPath)
}

func (d *dirDriver) NodeUnstageVolume(_ context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	for _, path := range d.mounted(r.VolumeId) {
		if path != r.StagingTargetPath {
			d.t.Errorf("%s is unstaged while %s is published", r.VolumeId, path)
		}
	}
	if mountedAt(r.StagingTargetPath) {
		if err := unix.Unmount(r.StagingTargetPath, 0); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &spec.NodeUnstageVolumeResponse{}, nil
}

func (d *dirDriver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	from := d.source(r.VolumeId)
	if d.stages() && r.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" {
		if from = r.StagingTargetPath; !mountedAt(from) {
			d.t.Errorf("%s is published and not staged", r.VolumeId)
			return nil, status.Error(codes.FailedPrecondition, "not staged")
		}
	} else if err := os.MkdirAll(from, 0o755); err != nil {
		return nil, err
	}
	if r.VolumeCapability.GetBlock() != nil {
		if err := os.WriteFile(r.TargetPath, nil, 0o600); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return &spec.NodePublishVolumeResponse{}, bind("/dev/null", r.TargetPath)
	}
	if err := os.Mkdir(r.TargetPath, 0o750); err != nil && !os.IsExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &spec.NodePublishVolumeResponse{}, bind(from, r.TargetPath)
}

func (d *dirDriver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	if mountedAt(r.TargetPath) {
		if err := unix.Unmount(r.TargetPath, 0); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	_ = os.Remove(r.TargetPath)
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

func (d *dirDriver) NodeExpandVolume(_ context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	if !mountedAt(r.VolumePath) {
		d.t.Errorf("%s is expanded at %s, where nothing is", r.VolumeId, r.VolumePath)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes[r.VolumeId] = r.CapacityRange.RequiredBytes
	return &spec.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.RequiredBytes}, nil
}

func (d *dirDriver) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if !mountedAt(r.VolumePath) {
		return nil, status.Error(codes.NotFound, "nothing is there")
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Available: 6, Total: 10, Used: 4}, {Unit: spec.VolumeUsage_INODES, Available: -5, Total: 3, Used: 2},
	}}, nil
}

// house is a node with a driver.
type house struct {
	*Manager
	t       testing.TB
	root    string
	driver  *dirDriver
	drivers *csi.Drivers
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHouse(t testing.TB, change ...func(*dirDriver)) *house {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	h := &house{t: t, root: t.TempDir(), driver: newDirDriver(t)}
	t.Cleanup(h.unmountAll)
	for _, fn := range change {
		fn(h.driver)
	}
	h.driver.start()
	h.drivers = csi.NewDrivers(csi.Config{})
	t.Cleanup(h.drivers.Close)
	h.register()
	h.open("")
	return h
}

func (h *house) register() {
	h.t.Helper()
	must(h.t, h.drivers.Register(h.t.Context(), csi.Registration{Name: driverName, Endpoint: h.driver.socket, Versions: []string{"1.0.0"}}))
}

// open starts the agent's part once more.
func (h *house) open(boot string) {
	h.t.Helper()
	if h.Manager != nil {
		h.Close()
	}
	m, err := New(Config{Root: h.root, Drivers: h.drivers, Node: "n", Boot: boot})
	must(h.t, err)
	// Its clock stands still, so that what is not to be tried again yet is not, however long it takes to ask.
	at := time.Now()
	m.ledger.now = func() time.Time { return at }
	h.Manager = m
}

func (h *house) unmountAll() {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	lines := slices.Collect(strings.Lines(string(data)))
	slices.Reverse(lines)
	for _, line := range lines {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, h.root+"/") {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	}
}

// volume makes the directory of a volume, with data in it.
func (h *house) volume(id string) {
	h.t.Helper()
	must(h.t, os.MkdirAll(h.driver.source(id), 0o755))
	must(h.t, os.WriteFile(filepath.Join(h.driver.source(id), "precious"), []byte("data"), 0o600))
}

func (h *house) podDir(uid string) string { return filepath.Join(h.root, "pods", uid) }

func (h *house) request(uid, id string) Request {
	_ = os.MkdirAll(h.podDir(uid), 0o750)
	return Request{
		Volume: Volume{Driver: driverName, Handle: id, Name: "pv-" + id, Attributes: map[string]string{"a": "b"}},
		Pod:    Pod{"ns", "pod-" + uid, uid, "default"}, PodDir: h.podDir(uid),
	}
}

func (h *house) publish(r Request) string {
	h.t.Helper()
	out, err := h.Publish(h.t.Context(), r)
	must(h.t, err)
	return out.Path
}

func (h *house) called(want string) {
	h.t.Helper()
	if got := h.driver.said(); got != want {
		h.t.Errorf("the driver was called to\n%s, want\n%s", got, want)
	}
}

// nothing proves that nothing is left but the volumes' data.
func (h *house) nothing() {
	h.t.Helper()
	if got := h.List(); len(got) > 0 {
		h.t.Errorf("there is %+v", got)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(h.t, err)
	if strings.Contains(string(data), h.root+"/") {
		h.t.Errorf("mounts are left:\n%s", data)
	}
	must(h.t, filepath.WalkDir(h.root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path != filepath.Join(h.root, "csi/journal") {
			h.t.Errorf("%s is left", path)
		}
		return err
	}))
	for _, p := range []string{"plugins/kubernetes.io/csi/" + driverName, "pods/a/volumes/" + pluginName} {
		if _, err := os.Lstat(filepath.Join(h.root, p)); err == nil {
			h.t.Errorf("%s is left", p)
		}
	}
	vols, err := os.ReadDir(filepath.Join(h.driver.dir, "vols"))
	must(h.t, err)
	for _, v := range vols {
		if b, err := os.ReadFile(filepath.Join(h.driver.source(v.Name()), "precious")); string(b) != "data" && !strings.HasPrefix(v.Name(), "csi-") {
			h.t.Errorf("the data of %s are %q, %v", v.Name(), b, err)
		}
	}
	if len(h.driver.attached) > 0 {
		h.t.Errorf("attached are %v", h.driver.attached)
	}
}

func mountedAt(path string) bool {
	is, _ := look(path)
	return is
}
