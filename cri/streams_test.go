package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/stdio"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // deprecated, and still what client-go has in its signatures
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// executors are the two protocols clients speak.
func executors(t *testing.T, rawURL string) map[string]func() remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]func() remotecommand.Executor{
		"spdy": func() remotecommand.Executor {
			e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		"websocket": func() remotecommand.Executor {
			e, err := remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, rawURL)
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
	}
}

type sizes []remotecommand.TerminalSize

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(*s) == 0 {
		return nil
	}
	first := (*s)[0]
	*s = (*s)[1:]
	return &first
}

func TestExecStreams(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	for _, proto := range []string{"spdy", "websocket"} {
		t.Run(proto, func(t *testing.T) {
			exec := func(tty bool, stdin io.Reader, size *sizes, cmd ...string) (string, string, error) {
				t.Helper()
				r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: cmd, Tty: tty, Stdin: stdin != nil, Stdout: true, Stderr: !tty})
				if err != nil {
					t.Fatal(err)
				}
				var out, errOut bytes.Buffer
				opts := remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Tty: tty}
				if !tty {
					opts.Stderr = &errOut
				}
				if size != nil {
					opts.TerminalSizeQueue = size
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err = executors(t, r.Url)[proto]().StreamWithContext(ctx, opts)
				return out.String(), errOut.String(), err
			}
			out, errOut, err := exec(false, nil, nil, "sh", "-c", "echo o; echo e >&2; exit 9")
			var code utilexec.ExitError
			if !errors.As(err, &code) || code.ExitStatus() != 9 || out != "o\n" || errOut != "e\n" {
				t.Errorf("got %q, %q, %v", out, errOut, err)
			}
			// The end of the input is an end for the command, which then goes on writing.
			out, _, err = exec(false, strings.NewReader("to and fro"), nil, "sh", "-c", "cat; echo; echo end")
			if err != nil || out != "to and fro\nend\n" {
				t.Errorf("got %q, %v", out, err)
			}
			out, _, err = exec(false, strings.NewReader("line\n"), nil, "sh", "-c", "read x; echo $x")
			if err != nil || out != "line\n" {
				t.Errorf("got %q, %v", out, err)
			}
			out, _, err = exec(true, strings.NewReader("stty size; echo $TERM; exit 4\n"), &sizes{{Width: 91, Height: 17}}, "sh")
			if !errors.As(err, &code) || code.ExitStatus() != 4 || !strings.Contains(out, "xterm") {
				t.Errorf("terminal: got %q, %v", out, err)
			}
			_, errOut, err = exec(false, nil, nil, "nosuchthing")
			if !errors.As(err, &code) || code.ExitStatus() != 127 || !strings.Contains(errOut, "executable file not found in $PATH\n") {
				t.Errorf("missing command: got %q, %v", errOut, err)
			}
			out, _, err = exec(true, nil, nil, "/etc/passwd")
			if !errors.As(err, &code) || code.ExitStatus() != 126 || !strings.Contains(out, "permission denied\r\n") {
				t.Errorf("what is no program, with a terminal: got %q, %v", out, err)
			}
			out, _, err = exec(false, nil, nil, "sh", "-c", "yes | head -c 3000000")
			if err != nil || len(out) != 3000000 {
				t.Errorf("much output: got %d bytes, %v", len(out), err)
			}
		})
	}
	r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		err := executors(t, r.Url)["spdy"]().StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if (err == nil) != (i == 0) {
			t.Errorf("a token used %d times: %v", i+1, err)
		}
	}
}

func TestTerminalIsResized(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	for _, proto := range []string{"spdy", "websocket"} {
		n.resized(t, proto, id)
	}
}

// resized runs a command in a terminal that waits for another size.
func (n *node) resized(t *testing.T, proto, id string) {
	t.Helper()
	r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: []string{"sh", "-c", "while [ \"$(stty size)\" != '17 91' ]; do sleep 0.02; done; echo resized"}, Tty: true, Stdout: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err = executors(t, r.Url)[proto]().StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{{Width: 91, Height: 17}},
	})
	if err != nil || !strings.Contains(out.String(), "resized") {
		t.Errorf("%s: got %q, %v", proto, out.String(), err)
	}
}

func TestAttach(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	for _, proto := range []string{"spdy", "websocket"} {
		id := n.attached(t, proto, pod, nil)
		if st := waitExited(t, n.Server, id); st.ExitCode != 0 {
			t.Errorf("%s: got %v", proto, st)
		}
		if got := logText(t, statusOf(t, n.Server, id).LogPath); got != "got one\ngot two\nthree\n" {
			t.Errorf("%s: log: got %q", proto, got)
		}
	}
}

// attached runs a container that answers to its input, and is its input.
func (n *node) attached(t *testing.T, proto, pod string, change func(*runtimeapi.ContainerConfig)) string {
	t.Helper()
	id := n.run(t, pod, "attached-"+proto, func(c *runtimeapi.ContainerConfig) {
		if change != nil {
			change(c)
		}
		c.Stdin, c.StdinOnce = true, true
	}, "sh", "-c", "read x; echo got $x; read y; echo got $y; cat")
	r, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err = executors(t, r.Url)[proto]().StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: strings.NewReader("one\ntwo\nthree\n"), Stdout: &out, Stderr: io.Discard,
	})
	if err != nil || out.String() != "got one\ngot two\nthree\n" {
		t.Errorf("%s: got %q, %v", proto, out.String(), err)
	}
	return id
}

func TestPortForward(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", nil, "sh", "-c", serves("80", "127.0.0.1", "four")+" & "+serves("81", "::1", "six"))
	for _, proto := range []string{"spdy", "websocket"} {
		conn := n.forward(t, proto, pod)
		defer conn.Close()
		id := 0
		for port, want := range map[string]string{"80": "four\n", "81": "six\n"} {
			eventually(t, func() bool { id++; return say(conn, id, port) == want })
		}
	}
}

// serves is a shell loop that says something to whoever connects.
func serves(port, address, text string) string {
	return fmt.Sprintf("while :; do echo %s | nc -l -p %s %s; done", text, port, address)
}

// forward connects with a sandbox's ports.
func (n *node) forward(t *testing.T, proto, pod string) httpstream.Connection {
	t.Helper()
	r, err := n.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(r.Url)
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := portforward.NewSPDYOverWebsocketDialer(u, &rest.Config{})
	if proto == "spdy" {
		var transport http.RoundTripper
		var upgrader spdy.Upgrader
		transport, upgrader, err = spdy.RoundTripperFor(&rest.Config{})
		dialer = spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// open opens the two streams of a connection with a port. When nobody listens there, cri-streaming may reset them
// before it has answered that they are open.
func open(conn httpstream.Connection, id int, port string) (data, errs httpstream.Stream, err error) {
	var both [2]httpstream.Stream
	for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		h := http.Header{}
		h.Set(corev1.StreamType, kind)
		h.Set(corev1.PortHeader, port)
		h.Set(corev1.PortForwardRequestIDHeader, itoa(id))
		if both[i], err = conn.CreateStream(h); err != nil {
			if i > 0 {
				_ = both[0].Reset()
				conn.RemoveStreams(both[0])
			}
			return nil, nil, err
		}
	}
	both[0].Close()
	return both[1], both[0], nil
}

// say returns what a port says, nothing when nobody does.
func say(conn httpstream.Connection, id int, port string) string {
	data, errs, err := open(conn, id, port)
	if err != nil {
		return ""
	}
	defer data.Close()
	b, _ := io.ReadAll(data)
	// What is not read holds up the whole connection.
	_, _ = io.ReadAll(errs)
	conn.RemoveStreams(data, errs)
	return string(b)
}

// Streams lead into a pod whatever its namespaces are.
func TestStreamsIntoNamespaces(t *testing.T) {
	n := usernsNode(t)
	for i, c := range []struct {
		name string
		opts *runtimeapi.NamespaceOption
	}{
		{"own-ids", &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: ownIDs(65536)}},
		{"own-ids-shared-pids", &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD, UsernsOptions: ownIDs(65536)}},
		{"shared-pids", &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}},
		{"host", &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod, change := n.usernsPod(t, c.name, c.opts, nil)
			port := itoa(20000 + os.Getpid()%10000 + i) // one of the host's for the last
			id := n.run(t, pod, "main", change, "sh", "-c", serves(port, "127.0.0.1", "hello"))
			for _, proto := range []string{"spdy", "websocket"} {
				n.resized(t, proto, id)
				waitExited(t, n.Server, n.attached(t, proto, pod, change))
				conn := n.forward(t, proto, pod)
				defer conn.Close()
				id := 0
				eventually(t, func() bool { id++; return say(conn, id, port) == "hello\n" })
			}
			if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A client that goes without a word takes nothing with it but its streams: a terminal is hung up, a connection ended,
// and a command goes on.
func TestClientsThatGo(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	// One that says nothing and does not care for the end of what it hears.
	id := n.run(t, pod, "main", nil, "sh", "-c", "mkfifo /tmp/p; sleep 1000 > /tmp/p & while :; do nc -l -p 80 127.0.0.1 < /tmp/p; done")
	for _, proto := range []string{"spdy", "websocket"} {
		for _, tty := range []bool{true, false} {
			seconds := map[bool]string{true: "4711", false: "4712"}[tty]
			r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: id, Cmd: []string{"sh", "-c", "echo here; exec sleep " + seconds}, Tty: tty, Stdin: true, Stdout: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			in, keep := io.Pipe()
			out, w := io.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- executors(t, r.Url)[proto]().StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: w, Tty: tty})
			}()
			if _, err := io.ReadFull(out, make([]byte, len("here"))); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, out)
			cancel()
			<-ended
			keep.Close()
			if tty {
				eventually(t, func() bool { return !strings.Contains(n.sh(t, id, "ps"), "4711") })
			}
		}
	}
	// One that is being executed has no arguments for a moment.
	eventually(t, func() bool { return strings.Count(n.sh(t, id, "ps"), "sleep 4712") == 2 })
	// The port's own end stays open: what is to be closed is ours.
	grep := func(state string) string {
		return n.sh(t, id, "grep -c ' 0100007F:0050 .* "+state+" ' /proc/net/tcp || true")
	}
	for _, proto := range []string{"spdy", "websocket"} {
		eventually(t, func() bool { return grep("0A") == "1" }) // somebody listens
		before := openFiles(t)
		conn := n.forward(t, proto, pod)
		if _, _, err := open(conn, 1, "80"); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return grep("01") == "1" }) // connected
		conn.Close()
		eventually(t, func() bool { return openFiles(t) <= before })
		n.sh(t, id, "kill -9 $(ps | grep '[n]c -l' | while read pid rest; do echo $pid; done)")
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// slowWriter takes nothing until it is let go.
type slowWriter struct {
	got        bytes.Buffer
	begun      sync.Once
	busy, free chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.begun.Do(func() { close(w.busy) })
	<-w.free
	return w.got.Write(p)
}

// A client that is slow gets all that the command has written, also when somebody whom it has left behind holds its
// output.
func TestSlowClientLosesNothing(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	for name, after := range map[string]string{"alone": "", "left-behind": "sleep 4717 &", "goes-on": "yes &"} {
		t.Run(name, func(t *testing.T) {
			w := &slowWriter{busy: make(chan struct{}), free: make(chan struct{})}
			// Little enough for the smallest pipe, which is what one gets who has many.
			ended := make(chan error, 1)
			go func() {
				ended <- streams{containers: n.core.ctrs}.Exec(t.Context(), id, []string{"sh", "-c", "echo first; sleep 0.3; seq 500; " + after}, nil, w, nil, false, nil)
			}()
			select {
			case <-w.busy:
			case err := <-ended:
				t.Fatal(err)
			}
			time.Sleep(2 * stdio.Drain) // as a rule the command ends long before
			close(w.free)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if got := w.got.String(); !strings.HasPrefix(got, "first\n1\n2\n") || !strings.Contains(got, "\n499\n500\n") {
				t.Errorf("got %d bytes, which end with %q", len(got), got[max(0, len(got)-20):])
			}
		})
	}
}

// Many execs at once, of both kinds, leave no file, no goroutine and no process.
func TestManyExecsAtOnce(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	round := func(count int) {
		var wg sync.WaitGroup
		for i := range count {
			wg.Go(func() {
				if r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo " + itoa(i)}, Timeout: 120}); err != nil || string(r.Stdout) != itoa(i)+"\n" {
					t.Errorf("got %v, %v", r, err)
				}
				r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"cat"}, Stdin: true, Stdout: true})
				if err != nil {
					t.Error(err)
					return
				}
				var out bytes.Buffer
				proto := []string{"spdy", "websocket"}[i%2]
				err = executors(t, r.Url)[proto]().StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("over"), Stdout: &out})
				if err != nil || out.String() != "over" {
					t.Errorf("%s: got %q, %v", proto, out.String(), err)
				}
			})
		}
		wg.Wait()
	}
	round(4) // what is there once, such as the files of the standard library
	wantFiles, wantRoutines := openFiles(t), runtime.NumGoroutine()
	round(200)
	eventually(t, func() bool { return openFiles(t) <= wantFiles && runtime.NumGoroutine() <= wantRoutines })
	if ps := n.sh(t, id, "ps"); strings.Count(ps, "\n") > 3 {
		t.Errorf("processes are left:\n%s", ps)
	}
}
