package csi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const example = "csi.example.com"

func (f *fake) registration() Registration {
	return Registration{Name: example, Endpoint: f.socket, Versions: []string{"0.3.0", "1.2.0"}}
}

func newDrivers(t *testing.T, sockets ...string) *Drivers {
	d := NewDrivers(Config{Sockets: sockets})
	t.Cleanup(d.Close)
	return d
}

func TestRegister(t *testing.T) {
	f := newFake(t, example).start()
	f.caps = []spec.NodeServiceCapability_RPC_Type{spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, nodeVolumeCondition}
	d := newDrivers(t)
	events := heard(t, d)
	must(t, d.Register(t.Context(), f.registration()))
	want(t, events, Event{example, true})
	got, err := d.Get(example)
	must(t, err)
	if got.NodeID != "id" || got.MaxVolumes != 3 || got.Topology["zone"] != "z" || got.Vendor != "1" ||
		!got.Node(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) || got.Node(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) || !got.Condition() ||
		!got.Controller(spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) ||
		!got.Service(spec.PluginCapability_Service_CONTROLLER_SERVICE) || !got.Expansion(spec.PluginCapability_VolumeExpansion_ONLINE) {
		t.Errorf("the driver is %+v", got)
	}
	if l := d.List(); len(l) != 1 || !l[0].Connected {
		t.Errorf("there are %v", l)
	}
	d.Deregister(example, "/elsewhere")
	d.Deregister(example, f.socket)
	want(t, events, Event{example, false})
	if _, err := d.Get(example); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("after it has gone: %v", err)
	}
	d.Deregister(example, f.socket)
}

// TestOrderOfEvents: a driver that dies while its coming is told of is told to be gone after that, not before.
func TestOrderOfEvents(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	var mu sync.Mutex
	var began, ended []bool
	done := make(chan bool, 8)
	defer d.Subscribe(func(e Event) {
		mu.Lock()
		began = append(began, e.Here)
		first := len(began) == 1
		mu.Unlock()
		if first {
			f.stop()
			client := d.List()[0].Client()
			for client.conn.GetState() == connectivity.Ready { // so that who follows it has the news as well
				client.conn.WaitForStateChange(t.Context(), connectivity.Ready)
			}
			for range 100 {
				runtime.Gosched()
			}
		}
		mu.Lock()
		ended = append(ended, e.Here)
		mu.Unlock()
		done <- e.Here
	})()
	must(t, d.Register(t.Context(), f.registration()))
	for here := range done {
		if !here {
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(began, []bool{true, false}) || !slices.Equal(ended, began) {
		t.Errorf("told %v, heard %v", began, ended)
	}
}

// TestOwn: the name of the driver that the process has itself is nobody else's, and it is called for when somebody asks
// for it.
func TestOwn(t *testing.T) {
	f, wanted := newFake(t, example).start(), 0
	d := NewDrivers(Config{Own: example, Wanted: func() { wanted++ }})
	t.Cleanup(d.Close)
	if err := d.Register(t.Context(), f.registration()); err == nil || !strings.Contains(err.Error(), "has csi.example.com itself") {
		t.Errorf("another driver of its name is registered: %v", err)
	}
	if _, err := d.Get(example); !errors.Is(err, ErrNotRegistered) || wanted != 1 {
		t.Errorf("%v, and was wanted %d times", err, wanted)
	}
	if _, err := d.Get("other.example.com"); err == nil || wanted != 1 {
		t.Errorf("%v, and was wanted %d times", err, wanted)
	}
	r := f.registration()
	r.Endpoint, r.Dial = "here", func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", f.socket) }
	must(t, d.Register(t.Context(), r))
	if got, err := d.Get(example); err != nil || got.Endpoint != "here" || wanted != 1 {
		t.Errorf("%v, %v, and was wanted %d times", got, err, wanted)
	}
}

// TestRefused: who cannot be taken is told why, and so is who asks for the driver.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fake, *Registration)
		want   string
	}{
		"versions":  {func(_ *fake, r *Registration) { r.Versions = []string{"0.3.0", "2.0.0", "x"} }, "one of 1.x"},
		"none":      {func(_ *fake, r *Registration) { r.Versions = nil }, "one of 1.x"},
		"name":      {func(_ *fake, r *Registration) { r.Name = "../x" }, "must be a domain name"},
		"endpoint":  {func(_ *fake, r *Registration) { r.Endpoint = "csi.sock" }, "must be the absolute path"},
		"long":      {func(_ *fake, r *Registration) { r.Endpoint = "/" + strings.Repeat("x", 200) }, "at most 107 bytes"},
		"other":     {func(f *fake, _ *Registration) { f.info = &spec.GetPluginInfoResponse{Name: "other"} }, "says that it is other"},
		"not ready": {func(f *fake, _ *Registration) { f.probe = notReady() }, "not ready"},
		"fails":     {func(f *fake, _ *Registration) { f.nodeErr = status.Error(codes.Internal, "on\nfire") }, "Internal: on fire"},
		"no ID":     {func(f *fake, _ *Registration) { f.node = &spec.NodeGetInfoResponse{} }, "node_id must have 1 to 256 bytes"},
		"many":      {func(f *fake, _ *Registration) { f.node = &spec.NodeGetInfoResponse{NodeId: "a", MaxVolumesPerNode: -1} }, "is -1"},
		"much": {func(f *fake, _ *Registration) {
			f.info = &spec.GetPluginInfoResponse{Name: example, VendorVersion: strings.Repeat("x", 5<<20)}
		}, "ResourceExhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, example).start()
			d := newDrivers(t)
			r := f.registration()
			c.change(f, &r)
			if err := d.Register(t.Context(), r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v", err)
			}
			if l := d.Refused(); len(l) != 1 || !strings.Contains(l[0].Why, c.want) || len(d.List()) > 0 {
				t.Errorf("refused are %v", l)
			}
			if _, err := d.Get(r.Name); !errors.Is(err, ErrNotRegistered) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("who asks for it: %v", err)
			}
			d.Deregister(r.Name, r.Endpoint)
			if l := d.Refused(); len(l) > 0 {
				t.Errorf("refused are %v", l)
			}
		})
	}
}

// TestTwoSockets has the last of two have the calls, and the first again when that one has gone.
func TestTwoSockets(t *testing.T) {
	first, second := newFake(t, example).start(), newFake(t, example)
	second.node = &spec.NodeGetInfoResponse{NodeId: "second"}
	second.start()
	d := newDrivers(t)
	must(t, d.Register(t.Context(), first.registration()))
	must(t, d.Register(t.Context(), second.registration()))
	is := func(id string) {
		t.Helper()
		if got, err := d.Get(example); err != nil || got.NodeID != id {
			t.Errorf("it is %+v, %v", got, err)
		}
	}
	is("second")
	d.Deregister(example, second.socket)
	is("id")
	must(t, d.Register(t.Context(), second.registration()))
	d.Deregister(example, first.socket)
	is("second")
}

// TestRestart: a driver that ends and comes again on its socket, of which no registrar tells, is heard of, and asked
// once more.
func TestRestart(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	events := heard(t, d)
	must(t, d.Register(t.Context(), f.registration()))
	want(t, events, Event{example, true})
	for _, id := range []string{"once", "twice"} {
		f.stop()
		want(t, events, Event{example, false})
		if l := d.List(); l[0].Connected {
			t.Error("it is there")
		}
		f.set(func() { f.node = &spec.NodeGetInfoResponse{NodeId: id}; f.probe = notReady() })
		f.start()
		f.set(func() { f.probe = nil })
		want(t, events, Event{example, true})
		if got, err := d.Get(example); err != nil || got.NodeID != id {
			t.Errorf("it is %+v, %v", got, err)
		}
	}
}

// TestGiven: a driver without a registrar is taken on when its socket comes, in a directory that comes later, too.
func TestGiven(t *testing.T) {
	f := newFake(t, example)
	f.socket = filepath.Join(filepath.Dir(f.socket), "a", "b", "csi.sock")
	d := newDrivers(t, "unix://"+f.socket)
	events := heard(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	must(t, os.MkdirAll(filepath.Dir(f.socket), 0o755))
	f.start()
	want(t, events, Event{example, true})
	f.stop()
	want(t, events, Event{example, false})
	f.start()
	want(t, events, Event{example, true})
	cancel()
	must(t, <-ended)
	want(t, events, Event{example, false})
	if l := d.List(); len(l) > 0 {
		t.Errorf("there are %v", l)
	}
	if err := newDrivers(t, "relative").Run(t.Context()); err == nil {
		t.Error("a relative path is taken")
	}
}

// TestInside has a driver in this process.
func TestInside(t *testing.T) {
	f := newFake(t, example)
	l := bufconn.Listen(1 << 16)
	f.serve(l)
	d := newDrivers(t)
	r := f.registration()
	r.Endpoint, r.Dial = "inside", func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) }
	must(t, d.Register(t.Context(), r))
	d.Deregister(example, "inside")
}

// TestCalls: what of a call is told, and to whom.
func TestCalls(t *testing.T) {
	f := newFake(t, example).start()
	var log bytes.Buffer
	d := NewDrivers(Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	must(t, d.Register(t.Context(), f.registration()))
	driver, err := d.Get(example)
	must(t, err)
	var code codes.Code
	f.stage = func(_ context.Context, r *spec.NodeStageVolumeRequest) error {
		return status.Error(code, "bad "+r.Secrets["password"]+strings.Repeat("x", 5000))
	}
	request := &spec.NodeStageVolumeRequest{
		VolumeId: "v", Secrets: map[string]string{"password": "hunter2!"}, VolumeContext: map[string]string{TokensKey: "token!", "a": "plain"},
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{MountFlags: []string{"pass=hidden!"}}}},
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		code = c
		_, err := driver.Client().Node().NodeStageVolume(t.Context(), request)
		uncertain := c == codes.Canceled || c == codes.DeadlineExceeded || c == codes.Unavailable || c == codes.Aborted
		if CodeOf(err) != c || Final(err) == uncertain || status.Code(err) != c || len(err.Error()) > 1200 || strings.Contains(err.Error(), "hunter2!") {
			t.Errorf("%s: %v, final is %t", c, err, Final(err))
		}
	}
	d.Deregister(example, f.socket)
	if _, err := driver.Client().Node().NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{}); CodeOf(err) != codes.Unavailable || Final(err) {
		t.Errorf("after it has gone: %v", err)
	}
	d.Close()
	text := log.String()
	if strings.Contains(text, "hunter2!") || strings.Contains(text, "token!") || strings.Contains(text, "hidden!") || !strings.Contains(text, "plain") {
		t.Errorf("the log has\n%s", text)
	}
	if request.Secrets["password"] != "hunter2!" || request.VolumeCapability.GetMount().MountFlags[0] != "pass=hidden!" {
		t.Error("the request is changed")
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(d.Collectors()...)
	families, err := registry.Gather()
	must(t, err)
	found := false
	for _, m := range families[0].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		found = found || labels["driver_name"] == example && labels["method_name"] == "/csi.v1.Node/NodeStageVolume" && labels["grpc_status_code"] == "Aborted"
	}
	if families[0].GetName() != "csi_operations_seconds" || !found {
		t.Errorf("metrics are %v", families)
	}
}

// TestUnderWay: a registrar that is restarted ends no call.
func TestUnderWay(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	must(t, d.Register(t.Context(), f.registration()))
	driver, err := d.Get(example)
	must(t, err)
	begun, end := make(chan bool), make(chan bool)
	f.stage = func(ctx context.Context, _ *spec.NodeStageVolumeRequest) error {
		begun <- true
		<-end
		return ctx.Err()
	}
	ended := make(chan error, 1)
	go func() {
		_, err := driver.Client().Node().NodeStageVolume(t.Context(), &spec.NodeStageVolumeRequest{})
		ended <- err
	}()
	<-begun
	d.Deregister(example, f.socket)
	must(t, d.Register(t.Context(), f.registration()))
	end <- true
	must(t, <-ended)
}

// TestStripped holds every message of the specification to it: no secret of any field is in the text.
func TestStripped(t *testing.T) {
	fields := 0
	messages := spec.File_csi_proto.Messages()
	for i := range messages.Len() {
		m := dynamicOf(messages.Get(i))
		if m == nil {
			continue
		}
		secrets := messages.Get(i).Fields().ByName("secrets")
		if secrets == nil {
			continue
		}
		fields++
		m.Mutable(secrets).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("hunter2!"))
		text := Stripped{m.Interface()}.String()
		if strings.Contains(text, "hunter2!") || !strings.Contains(text, stripped) {
			t.Errorf("%s is %s", messages.Get(i).Name(), text)
		}
	}
	if fields < 15 {
		t.Errorf("%d messages have secrets", fields)
	}
	if got := (Stripped{nil}).String(); got != "" {
		t.Errorf("nothing is %q", got)
	}
}

func dynamicOf(m protoreflect.MessageDescriptor) protoreflect.Message {
	for _, zero := range []proto.Message{
		&spec.CreateVolumeRequest{}, &spec.DeleteVolumeRequest{}, &spec.ControllerPublishVolumeRequest{}, &spec.ControllerUnpublishVolumeRequest{},
		&spec.ValidateVolumeCapabilitiesRequest{}, &spec.CreateSnapshotRequest{}, &spec.DeleteSnapshotRequest{}, &spec.ListSnapshotsRequest{},
		&spec.ControllerExpandVolumeRequest{}, &spec.NodeStageVolumeRequest{}, &spec.NodePublishVolumeRequest{}, &spec.NodeExpandVolumeRequest{},
		&spec.CreateVolumeGroupSnapshotRequest{}, &spec.DeleteVolumeGroupSnapshotRequest{}, &spec.GetVolumeGroupSnapshotRequest{},
		&spec.ControllerModifyVolumeRequest{}, &spec.GetSnapshotRequest{}, &spec.NodeGetStorageHealthRequest{},
	} {
		if zero.ProtoReflect().Descriptor().FullName() == m.FullName() {
			return zero.ProtoReflect()
		}
	}
	return nil
}

// FuzzInfo: whatever a driver says of itself and the node is bounded, or refused.
func FuzzInfo(f *testing.F) {
	for _, m := range []*spec.NodeGetInfoResponse{{NodeId: "a"}, {NodeId: "a", AccessibleTopology: &spec.Topology{Segments: map[string]string{"k": "v"}}}} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "csi.example.com")
	}
	f.Fuzz(func(t *testing.T, b []byte, text string) {
		if CheckName(text) == nil && (filepath.Base(text) != text || strings.HasPrefix(text, ".") || len(text) > 63) {
			t.Errorf("the name %q is taken", text)
		}
		if got := Text(text); len(got) > maxMessage || strings.ContainsAny(got, "\n\x1b") {
			t.Errorf("%q is %q", text, got)
		}
		info := &spec.NodeGetInfoResponse{}
		if proto.Unmarshal(b, info) != nil {
			return
		}
		d := &Driver{}
		if d.take(info) == nil && (d.NodeID == "" || len(d.NodeID) > maxNodeID || d.MaxVolumes < 0) {
			t.Errorf("taken is %+v", d)
		}
		_ = Stripped{info}.String()
	})
}

// TestUnread: what a driver has answered that is too long is not known, though the code is one of drivers.
func TestUnread(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	must(t, d.Register(t.Context(), f.registration()))
	driver, err := d.Get(example)
	must(t, err)
	f.set(func() { f.info = &spec.GetPluginInfoResponse{Name: example, VendorVersion: strings.Repeat("x", 5<<20)} })
	_, err = driver.Client().Identity().GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{})
	if CodeOf(err) != codes.Unknown || status.Code(err) != codes.ResourceExhausted || Final(err) {
		t.Errorf("%v, final is %t", err, Final(err))
	}
}
