package cri

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
			e, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, rawURL, "v4.channel.k8s.io")
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
			// The end of the input is an end for the command, which then goes on writing. Version 4 of the protocol over
			// WebSocket has no word for it.
			if proto == "spdy" {
				out, _, err = exec(false, strings.NewReader("to and fro"), nil, "sh", "-c", "cat; echo; echo end")
				if err != nil || out != "to and fro\nend\n" {
					t.Errorf("got %q, %v", out, err)
				}
			}
			out, _, err = exec(false, strings.NewReader("line\n"), nil, "sh", "-c", "read x; echo $x")
			if err != nil || out != "line\n" {
				t.Errorf("got %q, %v", out, err)
			}
			out, _, err = exec(true, strings.NewReader("stty size; echo $TERM; exit 4\n"), &sizes{{Width: 91, Height: 17}}, "sh")
			if !errors.As(err, &code) || code.ExitStatus() != 4 || !strings.Contains(out, "xterm") {
				t.Errorf("terminal: got %q, %v", out, err)
			}
			if _, _, err = exec(false, nil, nil, "nosuchthing"); err == nil || !strings.Contains(err.Error(), "executable file not found in $PATH") {
				t.Errorf("missing command: got %v", err)
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
	r, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: []string{"sh", "-c", "while [ \"$(stty size)\" != '17 91' ]; do sleep 0.02; done; echo resized"}, Tty: true, Stdout: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err = executors(t, r.Url)["spdy"]().StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{{Width: 91, Height: 17}},
	})
	if err != nil || !strings.Contains(out.String(), "resized") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestAttach(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(c *runtimeapi.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, "sh", "-c", "read x; echo got $x; read y; echo got $y; cat")
	r, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err = executors(t, r.Url)["spdy"]().StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: strings.NewReader("one\ntwo\nthree\n"), Stdout: &out, Stderr: io.Discard,
	})
	if err != nil || out.String() != "got one\ngot two\nthree\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	if st := waitExited(t, n.Server, id); st.ExitCode != 0 {
		t.Errorf("got %v", st)
	}
	if got := logText(t, statusOf(t, n.Server, id).LogPath); got != "got one\ngot two\nthree\n" {
		t.Errorf("log: got %q", got)
	}
}

func TestPortForward(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", nil, "sh", "-c", "while :; do echo four | nc -l -p 80 127.0.0.1; done & while :; do echo six | nc -l -p 81 ::1; done")
	r, err := n.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(r.Url)
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reqID := 0
	get := func(port string) string {
		reqID++
		h := http.Header{}
		h.Set(corev1.StreamType, corev1.StreamTypeError)
		h.Set(corev1.PortHeader, port)
		h.Set(corev1.PortForwardRequestIDHeader, itoa(reqID))
		errs, err := conn.CreateStream(h)
		if err != nil {
			t.Fatal(err)
		}
		errs.Close()
		h.Set(corev1.StreamType, corev1.StreamTypeData)
		data, err := conn.CreateStream(h)
		if err != nil {
			t.Fatal(err)
		}
		defer data.Close()
		b, _ := io.ReadAll(data)
		// What is not read holds up the whole connection.
		_, _ = io.ReadAll(errs)
		conn.RemoveStreams(data, errs)
		return string(b)
	}
	for port, want := range map[string]string{"80": "four\n", "81": "six\n"} {
		eventually(t, func() bool { return get(port) == want })
	}
}
