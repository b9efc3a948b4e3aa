package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/api/pki"
	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/desired"
	berthpod "github.com/berth-node/berth/agent/pod"
)

func TestMain(m *testing.M) {
	// A client's connection that was closed by the server before lingers for a second.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// The heartbeat of a client of a WebSocket that broke lasts until it is to beat.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// feed is a Feed of pods held in memory.
type feed[T any] struct {
	mu    sync.Mutex
	items []T
	subs  map[chan change[T]]bool
}

type change[T any] struct {
	t watch.EventType
	v T
}

func (f *feed[T]) List() []T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]T(nil), f.items...)
}

func (f *feed[T]) set(t watch.EventType, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.items = []T{v}
	if t == watch.Deleted {
		f.items = nil
	}
	for c := range f.subs {
		c <- change[T]{t, v}
	}
}

func (f *feed[T]) Subscribe() func(context.Context, func(watch.EventType, T) error) error {
	c := make(chan change[T], 16)
	f.mu.Lock()
	items := append([]T(nil), f.items...)
	if f.subs == nil {
		f.subs = map[chan change[T]]bool{}
	}
	f.subs[c] = true
	f.mu.Unlock()
	return func(ctx context.Context, fn func(watch.EventType, T) error) error { return f.follow(ctx, c, items, fn) }
}

func (f *feed[T]) follow(ctx context.Context, c chan change[T], items []T, fn func(watch.EventType, T) error) error {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, c)
	}()
	for _, v := range items {
		if err := fn(watch.Added, v); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ch := <-c:
			if err := fn(ch.t, ch.v); err != nil {
				return err
			}
		}
	}
}

// runtime is a container runtime with a real streaming server and a process that is a Go function.
type runtime struct {
	streaming.Server
	log string
	at  string // where commands and ports are instead; "": here
}

func (r *runtime) ContainerStatus(_ context.Context,
	req *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	if req.GetContainerId() != "c1" {
		return nil, errors.New("no such container")
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_RUNNING, LogPath: r.log}}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context,
	req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	if uid, ok := req.GetFilter().GetLabelSelector()["io.kubernetes.pod.uid"]; ok && uid != "u1" {
		return &runtimeapi.ListPodSandboxResponse{}, nil
	}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{
		Id:       "s1",
		Metadata: &runtimeapi.PodSandboxMetadata{Name: key.Name, Namespace: key.Namespace, Uid: "u1"},
	}}}, nil
}

func (r *runtime) ListContainers(context.Context,
	*runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: "c1", PodSandboxId: "s1", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "img:1"},
	}}}, nil
}

func (r *runtime) CheckpointContainer(context.Context,
	*runtimeapi.CheckpointContainerRequest,
) (*runtimeapi.CheckpointContainerResponse, error) {
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

func (r *runtime) ExecSync(_ context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if req.GetCmd()[0] == "false" {
		return &runtimeapi.ExecSyncResponse{ExitCode: 1, Stderr: []byte("no")}, nil
	}
	return &runtimeapi.ExecSyncResponse{Stdout: fmt.Appendf(nil, "%s %s", req.GetContainerId(), req.GetCmd())}, nil
}

func (r *runtime) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if r.at != "" {
		return &runtimeapi.ExecResponse{Url: r.at}, nil
	}
	return r.GetExec(req)
}

func (r *runtime) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return r.GetAttach(req)
}

func (r *runtime) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse,
	error,
) {
	if r.at != "" {
		return &runtimeapi.PortForwardResponse{Url: r.at}, nil
	}
	return r.GetPortForward(req)
}

type process struct{ connections *connections }

// connections are those of a server, to be cut.
type connections struct {
	net.Listener
	mu  sync.Mutex
	all []net.Conn
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conn)
	return conn, nil
}

// cut is the end of the server as a kill is it: what was written is on its way, and nothing more is said.
func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		conn.Close()
	}
}

func (p process) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan streamcommand.TerminalSize,
) error {
	fmt.Fprintf(out, "%s %q tty=%t\n", id, cmd, tty)
	if cmd[0] == "cut" {
		p.connections.cut()
	}
	if in != nil {
		io.Copy(out, in)
	}
	if tty {
		s := <-resize
		fmt.Fprintf(out, "%dx%d", s.Width, s.Height)
	}
	if errw != nil {
		io.WriteString(errw, "complaint")
	}
	if cmd[0] == "fail" {
		return exec.CodeExitError{Err: errors.New("failed"), Code: 7}
	}
	return nil
}

func (p process) Attach(_ context.Context, id string, in io.Reader, out, _ io.WriteCloser, tty bool,
	_ <-chan streamcommand.TerminalSize,
) error {
	if tty {
		p.connections.cut()
		return nil
	}
	fmt.Fprintf(out, "attached to %s\n", id)
	io.Copy(out, in)
	return nil
}

func (process) PortForward(_ context.Context, id string, port int32, s io.ReadWriteCloser) error {
	defer s.Close()
	b := make([]byte, 4)
	if _, err := io.ReadFull(s, b); err != nil {
		return err
	}
	fmt.Fprintf(s, "%s from %s:%d", b, id, port)
	return nil
}

type fixture struct {
	pods   feed[*corev1.Pod]
	events feed[*corev1.Event]
	rt     *runtime
	cfg    api.Config
	client *client.Client
	ill    error
}

var key = types.NamespacedName{Namespace: "default", Name: "web-node"}

func pod(rev string, running bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, UID: "u1", ResourceVersion: rev},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main"}, {Name: "late"}}},
	}
	s := corev1.ContainerStatus{Name: "main", ContainerID: "berth://c1"}
	if running {
		s.State.Running = &corev1.ContainerStateRunning{}
	} else {
		s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", ContainerID: "berth://c1"}
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
	return p
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{rt: &runtime{log: filepath.Join(t.TempDir(), "0.log")}}
	streams := httptest.NewUnstartedServer(nil)
	c := streaming.DefaultConfig
	c.BaseURL = &url.URL{Scheme: "http", Host: streams.Listener.Addr().String()}
	listener := &connections{Listener: streams.Listener}
	streams.Listener = listener
	ss, err := streaming.NewServer(c, process{listener})
	if err != nil {
		t.Fatal(err)
	}
	f.rt.Server = ss
	streams.Config.Handler = ss
	streams.Start()
	f.pods.set(watch.Added, pod("1", true))

	// Longer than an address of a socket can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	f.cfg = api.Config{
		Authority: authority,
		Pods:      &f.pods, Events: &f.events, Runtime: f.rt,
		File:     func(k types.NamespacedName) string { return "/m/" + k.Name + ".yaml" },
		Healthy:  func() error { return f.ill },
		Problems: func() []api.Problem { return []api.Problem{{File: "x", Errors: []string{"bad"}}} },
		Timing: func(types.UID) *berthpod.Span {
			return &berthpod.Span{Name: "pod", Duration: time.Millisecond, Children: []*berthpod.Span{{Name: "sandbox"}}}
		},
		Images: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }),
	}
	srv := httptest.NewUnstartedServer(api.New(f.cfg))
	srv.Listener = l.Listener
	srv.Start()
	f.client = client.New(dir)
	t.Cleanup(func() {
		f.client.HTTP().CloseIdleConnections()
		srv.Close()
		streams.Close()
	})
	return f
}

func TestObjects(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	pods, err := f.client.Pods(ctx, "default")
	if err != nil || len(pods) != 1 || pods[0].Name != key.Name {
		t.Fatalf("%v, %v", pods, err)
	}
	if pods, err := f.client.Pods(ctx, "other"); err != nil || len(pods) != 0 {
		t.Errorf("other namespace: %v, %v", pods, err)
	}
	p, file, err := f.client.Pod(ctx, key)
	if err != nil || p.Kind != "Pod" || file != "/m/web-node.yaml" {
		t.Errorf("%v, %q, %v", p, file, err)
	}
	var e *client.Error
	if _, _, err := f.client.Pod(ctx, types.NamespacedName{Namespace: "default", Name: "no"}); !errors.As(err, &e) ||
		e.Code != http.StatusNotFound {
		t.Errorf("unknown pod: %v", err)
	}
	if err := f.client.Delete(ctx, key); !errors.As(err, &e) || e.Code != http.StatusConflict ||
		!strings.Contains(err.Error(), "/m/web-node.yaml") {
		t.Errorf("delete: %v", err)
	}
	remote := pod("1", true)
	remote.Annotations = map[string]string{desired.AnnotationSource: string(desired.API)}
	f.pods.set(watch.Modified, remote)
	if err := f.client.Delete(ctx, key); !errors.As(err, &e) || e.Code != http.StatusConflict ||
		!strings.Contains(err.Error(), "delete it there") {
		t.Errorf("delete a pod of an API server: %v", err)
	}
	f.pods.set(watch.Modified, pod("1", true))
	if span, err := f.client.Timing(ctx, key); err != nil || span.Children[0].Name != "sandbox" {
		t.Errorf("timing: %v, %v", span, err)
	}
	if ps, err := f.client.Problems(ctx); err != nil || len(ps) != 1 {
		t.Errorf("problems: %v, %v", ps, err)
	}
	if err := f.client.Healthy(ctx); err != nil {
		t.Error(err)
	}
	f.ill = errors.New("not yet")
	if err := f.client.Healthy(ctx); err == nil || err.Error() != "not yet" {
		t.Errorf("healthz: %v", err)
	}
	resp, err := f.client.Do(ctx, http.MethodGet, "/images/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); string(b) != "/images/x" {
		t.Errorf("images: %q", b)
	}
}

func TestWatch(t *testing.T) {
	f := start(t)
	stop := errors.New("enough")
	var got []string
	err := f.client.WatchPods(t.Context(), "default", func(et watch.EventType, p *corev1.Pod) error {
		got = append(got, string(et)+p.ResourceVersion)
		switch len(got) {
		case 1:
			f.pods.set(watch.Modified, pod("2", true))
			f.pods.set(watch.Deleted, pod("2", false))
		case 3:
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || strings.Join(got, " ") != "ADDED1 MODIFIED2 DELETED2" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLogs(t *testing.T) {
	f := start(t)
	if err := os.WriteFile(f.rt.log, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stdout F two\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.client.Logs(t.Context(), key, "main", client.LogOptions{Tail: 1}, &b); err != nil ||
		b.String() != "two\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	var e *client.Error
	for _, c := range []struct {
		container string
		o         client.LogOptions
		want      string
	}{
		{"nope", client.LogOptions{}, "container nope is not one of pod web-node"},
		{"late", client.LogOptions{}, "has not been started yet"},
		{"main", client.LogOptions{Previous: true}, "previous terminated container"},
		{"main", client.LogOptions{SinceTime: "yesterday"}, "not a time"},
	} {
		if err := f.client.Logs(t.Context(), key, c.container, c.o, &b); !errors.As(err, &e) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// A follower sees what comes and ends with the container.
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- f.client.Logs(t.Context(), key, "main", client.LogOptions{Follow: true, Tail: -1}, w)
		w.Close()
	}()
	line := make([]byte, 8)
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "one\ntwo\n" {
		t.Fatalf("%q, %v", line, err)
	}
	fh, _ := os.OpenFile(f.rt.log, os.O_APPEND|os.O_WRONLY, 0)
	io.WriteString(fh, "2026-01-02T03:04:07Z stdout F three\n")
	fh.Close()
	if _, err := io.ReadFull(r, line[:6]); err != nil || string(line[:6]) != "three\n" {
		t.Fatalf("%q, %v", line, err)
	}
	f.pods.set(watch.Modified, pod("2", false))
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type sizes struct{ sent bool }

func (s *sizes) Next() *remotecommand.TerminalSize {
	if s.sent {
		return nil
	}
	s.sent = true
	return &remotecommand.TerminalSize{Width: 80, Height: 24}
}

func TestExec(t *testing.T) {
	f := start(t)
	var o, e bytes.Buffer
	err := f.client.Exec(t.Context(), key, "main", []string{"cat", "a b"},
		remotecommand.StreamOptions{Stdin: strings.NewReader("input"), Stdout: &o, Stderr: &e})
	if err != nil || o.String() != "c1 [\"cat\" \"a b\"] tty=false\ninput" || e.String() != "complaint" {
		t.Errorf("%v, %q, %q", err, o.String(), e.String())
	}
	var code exec.CodeExitError
	if err := f.client.Exec(t.Context(), key, "main", []string{"fail"},
		remotecommand.StreamOptions{Stdout: &o}); !errors.As(err, &code) || code.Code != 7 {
		t.Errorf("exit code: %v", err)
	}
	o.Reset()
	err = f.client.Exec(t.Context(), key, "main", []string{"sh"},
		remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &o, Tty: true, TerminalSizeQueue: &sizes{}})
	if err != nil || !strings.HasSuffix(o.String(), "tty=true\n80x24") {
		t.Errorf("tty: %v, %q", err, o.String())
	}
	o.Reset()
	err = f.client.Exec(t.Context(), key, "main", nil,
		remotecommand.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &o})
	if err != nil || o.String() != "attached to c1\nin" {
		t.Errorf("attach: %v, %q", err, o.String())
	}
	var fail *client.Error
	f.pods.set(watch.Modified, pod("2", false))
	if err := f.client.Exec(t.Context(), key, "main", []string{"sh"},
		remotecommand.StreamOptions{Stdout: &o}); !errors.As(err, &fail) || !strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("ended container: %v", err)
	}
}

// TestNoStatus has the connection of a command and of an attachment break: neither is taken for one that has ended
// well.
func TestNoStatus(t *testing.T) {
	f := start(t)
	var out bytes.Buffer
	err := f.client.Exec(t.Context(), key, "main", []string{"cut"},
		remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
	if !errors.Is(err, api.ErrNoStatus) {
		t.Errorf("exec: %v, %q", err, out.String())
	}
	if err := f.client.Exec(t.Context(), key, "main", nil,
		remotecommand.StreamOptions{Stdout: &out, Tty: true}); !errors.Is(err, api.ErrNoStatus) {
		t.Errorf("attach: %v", err)
	}
	if err := f.client.Exec(t.Context(), key, "main", []string{"echo"},
		remotecommand.StreamOptions{Stdout: &out}); err != nil {
		t.Errorf("one that ends well: %v", err)
	}
}

func TestPortForward(t *testing.T) {
	f := start(t)
	d, err := f.client.Dialer(key)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	pf, err := portforward.NewForStreaming(d, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	pingForwarded(t, pf, ready, stop)
}

// pingForwarded forwards the one port of pf, sends a ping through it and closes stop.
func pingForwarded(t *testing.T, pf *portforward.PortForwarder, ready <-chan struct{}, stop chan<- struct{}) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- pf.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := pf.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "ping")
	if b, err := io.ReadAll(conn); err != nil || string(b) != "ping from s1:8080" {
		t.Errorf("%q, %v", b, err)
	}
	conn.Close()
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNoAgent(t *testing.T) {
	if _, err := client.New(t.TempDir()).Pods(t.Context(), ""); !errors.Is(err, client.ErrNoAgent) {
		t.Errorf("got %v", err)
	}
}
