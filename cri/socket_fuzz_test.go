package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/serve"
)

// fuzzer fills requests with what is likely to go wrong, but for what would reach beyond the test's own node.
type fuzzer struct {
	*rand.Rand
	dir, groups string
	ids         []string // of sandboxes and containers there are or were
	pod, ctr    string   // the last of them
}

func pick[T any](f *fuzzer, from ...T) T { return from[f.IntN(len(from))] }

func (f *fuzzer) text(field string) string {
	switch field {
	case "host_path", "log_directory", "localhost_ref", "location":
		return pick(f, "", filepath.Join(f.dir, "a"), filepath.Join(f.dir, "b", "c"))
	case "log_path":
		return pick(f, "", "x.log", "y/z.log")
	case "cgroup_parent":
		return pick(f, "", f.groups+"/f", f.groups+"/g/h", "/../..")
	case "image", "user_specified_image", "image_ref":
		return pick(f, boxImage, boxImage, boxImage, "", "nosuch", "127.0.0.1:1/none:1", "@", "UPPER", strings.Repeat("x", 300))
	case "pod_sandbox_id", "container_id", "id", "target_id":
		if len(f.ids) > 0 && f.IntN(5) > 0 {
			id := pick(f, f.ids...)
			return id[:pick(f, len(id), len(id), len(id), 12, 1)]
		}
		return pick(f, "", "0", strings.Repeat("f", 64), strings.Repeat("x", 65))
	case "runtime_handler":
		return pick(f, "", "", "", "nosuch")
	case "command", "cmd", "args":
		return pick(f, "true", "sleep", "100", "", "/nosuch", "\x00")
	case "container_path", "working_dir":
		return pick(f, "", "/", "/mnt", "relative", "/proc", "/a/../../b", "/dev/x")
	case "permissions":
		return pick(f, "", "rwm", "q")
	case "protocol", "host_ip":
		return pick(f, "", "127.0.0.1", "::1", "bad")
	}
	return pick(f, "", "a", "b", "UPPER", "sp ace", "new\nline", "../..", "é", strings.Repeat("l", 5000), "berth.test/x=y", "ALL", "NET_ADMIN", "net.core.somaxconn")
}

func (f *fuzzer) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if depth > 6 || f.IntN(3) == 0 && depth > 0 {
			continue
		}
		switch {
		case fd.IsMap():
			for range f.IntN(3) {
				if fd.MapValue().Kind() == protoreflect.StringKind {
					m.Mutable(fd).Map().Set(protoreflect.ValueOfString(f.text("key")).MapKey(), protoreflect.ValueOfString(f.text("value")))
				}
			}
		case fd.IsList():
			for range f.IntN(3) {
				l := m.Mutable(fd).List()
				if fd.Message() != nil {
					f.fill(l.AppendMutable().Message(), depth+1)
				} else {
					l.Append(f.value(fd))
				}
			}
		case fd.Message() != nil:
			f.fill(m.Mutable(fd).Message(), depth+1)
		default:
			m.Set(fd, f.value(fd))
		}
	}
}

func (f *fuzzer) value(fd protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(fd.Name())
	number := pick[int64](f, 0, 1, -1, 2, 4096, 1<<20, 1<<40, math.MaxInt64, math.MinInt64)
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text(name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.text(name)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.IntN(fd.Enum().Values().Len() + 1)))
	case protoreflect.Int32Kind:
		if name == "host_port" {
			return protoreflect.ValueOfInt32(pick[int32](f, 0, -1)) // the machine's own ports are others' too
		}
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	}
	return fd.Default()
}

// mend makes some requests possible, so that something comes to be.
func (f *fuzzer) mend(req proto.Message, i int) {
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		if r.Config == nil {
			return
		}
		r.Config.Metadata = &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("p", i), Namespace: "fuzz", Uid: fmt.Sprint(i)}
		if r.Config.Linux != nil {
			r.Config.Linux.Sysctls = nil
		}
	case *runtimeapi.CreateContainerRequest:
		if r.Config == nil || f.IntN(2) == 0 {
			return
		}
		cfg := containerConfig(fmt.Sprint("c", i))
		cfg.Image.Image, cfg.Command = boxImage, []string{"sleep", "100"}
		cfg.Envs, cfg.Tty, cfg.Stdin, cfg.Labels, cfg.StopSignal = r.Config.Envs, r.Config.Tty, r.Config.Stdin, r.Config.Labels, r.Config.StopSignal
		r.Config, r.PodSandboxId = cfg, f.pod
	case *runtimeapi.StartContainerRequest:
		r.ContainerId = pick(f, r.ContainerId, f.ctr)
	case *runtimeapi.ExecSyncRequest:
		r.ContainerId, r.Timeout = f.ctr, pick[int64](f, 1, -1, math.MaxInt64)
	case *runtimeapi.UpdateContainerResourcesRequest:
		r.ContainerId = f.ctr
	case *runtimeapi.StopPodSandboxRequest:
		r.PodSandboxId = pick(f, r.PodSandboxId, "", "nobody")
	case *runtimeapi.RemovePodSandboxRequest:
		r.PodSandboxId = pick(f, r.PodSandboxId, "", "nobody")
	case *runtimeapi.RemoveImageRequest:
		r.Image = pick(f, nil, &runtimeapi.ImageSpec{}, &runtimeapi.ImageSpec{Image: "nosuch"})
	}
}

// TestRandomRequests calls everything there is on the socket with random messages. Nothing panics, the runtime goes on
// to answer, and what came to be can be removed without a trace.
func TestRandomRequests(t *testing.T) {
	n := newNode(t)
	socket := filepath.Join(n.cfg.RunDir, "cri.sock")
	ctx, stop := context.WithCancel(context.Background())
	served, ready := make(chan error, 1), make(chan struct{})
	go func() {
		served <- serve.Run(ctx, serve.Config{Socket: socket, Runtime: n.Server, Images: n.ImageServer, Ready: func() { close(ready) }, Log: discard()})
	}()
	<-ready
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	f := &fuzzer{Rand: rand.New(rand.NewPCG(1, 2)), dir: t.TempDir(), groups: n.cfg.CgroupRoot}
	var methods []protoreflect.MethodDescriptor
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			methods = append(methods, services.Get(i).Methods().Get(j))
		}
	}
	// Whoever serves the connection, and looks after the socket and the bridge, begins at its own time.
	if _, err := runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	answered := map[string]int{}
	// Luck and the limits of calls decide what is answered. It goes on for longer, and with more patience, until each
	// of those was possible that the rest is about.
	needed := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "Version", "PodSandboxStatus", "ExecSync"}
	possible := func() bool { return !slices.ContainsFunc(needed, func(m string) bool { return answered[m] == 0 }) }
	for i := 0; i < 8*len(methods) || i < 40*len(methods) && !possible(); i++ {
		m, patience := methods[i%len(methods)], time.Duration(1+i/(8*len(methods)))*250*time.Millisecond
		req, resp := newMessage(t, m.Input()), newMessage(t, m.Output())
		f.fill(req.ProtoReflect(), 0)
		f.mend(req, i)
		err := callAny(conn, m, patience, req, resp)
		if status.Code(err) == codes.Internal {
			t.Errorf("%s %v: %v", m.Name(), req, err)
		}
		if err == nil {
			answered[string(m.Name())]++
		}
		if id := idOf(resp, "pod_sandbox_id"); id != "" {
			f.pod, f.ids = id, append(f.ids, id)
		}
		if id := idOf(resp, "container_id"); id != "" && m.Name() == "CreateContainer" {
			f.ctr, f.ids = id, append(f.ids, id)
		}
	}
	if !possible() {
		t.Errorf("not each of %q was possible: %v", needed, answered)
	}
	for _, sb := range n.core.pods.Table.ByID.All(sandbox.Newest) {
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.ID}); err != nil {
			t.Error(err)
		}
	}
	if l := n.leaks(t); len(l) > 0 {
		t.Errorf("left behind: %q", l)
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= before+10 })
	if t.Failed() {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // who is it
	}
	conn.Close()
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

func idOf(m proto.Message, field protoreflect.Name) string {
	r := m.ProtoReflect()
	if fd := r.Descriptor().Fields().ByName(field); fd != nil && fd.Kind() == protoreflect.StringKind {
		return r.Get(fd).String()
	}
	return ""
}

// callAny calls a method, and reads a stream for a moment.
func callAny(
	conn *grpc.ClientConn, m protoreflect.MethodDescriptor, limit time.Duration, req, resp proto.Message,
) error {
	if m.IsStreamingServer() {
		limit = 50 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, method, req, resp)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err == nil {
		err = errors.Join(s.SendMsg(req), s.CloseSend())
	}
	for err == nil {
		err = s.RecvMsg(resp)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
