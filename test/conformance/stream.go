package conformance

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // deprecated, and still what client-go has in its signatures
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var streamCases = []testCase{
	{"ExecSPDY", func(t *testing.T, s *suite) { exec(t, s, spdyExecutor) }},
	{"ExecWebSocket", func(t *testing.T, s *suite) { exec(t, s, webSocketExecutor) }},
	{"ExecTerminalSPDY", func(t *testing.T, s *suite) { execTerminal(t, s, spdyExecutor) }},
	{"ExecTerminalWebSocket", func(t *testing.T, s *suite) { execTerminal(t, s, webSocketExecutor) }},
	{"AttachSPDY", func(t *testing.T, s *suite) { attach(t, s, spdyExecutor) }},
	{"AttachWebSocket", func(t *testing.T, s *suite) { attach(t, s, webSocketExecutor) }},
	{"PortForwardSPDY", func(t *testing.T, s *suite) { portForward(t, s, spdyDialer) }},
	{"PortForwardWebSocket", func(t *testing.T, s *suite) { portForward(t, s, webSocketDialer) }},
	{"StreamRequests", streamRequests},
	{"StreamsOfWhatHasEnded", streamsOfWhatHasEnded},
}

type executor func(string) (remotecommand.Executor, error)

func spdyExecutor(raw string) (remotecommand.Executor, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
}

// webSocketExecutor is that of kubectl and crictl, and speaks to older runtimes, too.
func webSocketExecutor(raw string) (remotecommand.Executor, error) {
	return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, raw, "v5.channel.k8s.io",
		"v4.channel.k8s.io")
}

func stream(t *testing.T, with executor, raw string, opts remotecommand.StreamOptions) error {
	t.Helper()
	e, err := with(raw)
	must(t)(err)
	ctx, cancel := contextOf(t)
	defer cancel()
	return e.StreamWithContext(ctx, opts)
}

func exec(t *testing.T, s *suite, with executor) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	run := func(stdin io.Reader, cmd ...string) (string, string, error) {
		t.Helper()
		r, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: cmd, Stdin: stdin != nil, Stdout: true,
			Stderr: true,
		})
		must(t)(err)
		var out, errOut bytes.Buffer
		err = stream(t, with, r.GetUrl(), remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errOut})
		return out.String(), errOut.String(), err
	}
	var code utilexec.ExitError
	out, errOut, err := run(nil, "sh", "-c", "echo o; echo e >&2; exit 9")
	if !errors.As(err, &code) || code.ExitStatus() != 9 || out != "o\n" || errOut != "e\n" {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}
	if out, _, err = run(strings.NewReader("a line\n"), "sh", "-c", "read x; echo got $x"); err != nil ||
		out != "got a line\n" {
		t.Errorf("input: got %q, %v", out, err)
	}
	if out, _, err = run(nil, "sh", "-c", "yes | head -c 2000000"); err != nil || len(out) != 2000000 {
		t.Errorf("much output: got %d bytes, %v", len(out), err)
	}
	// An exit code of 127, as of a shell, or a failure that names it.
	_, errOut, err = run(nil, "no-such-thing")
	if notThere := errors.As(err, &code) && code.ExitStatus() == 127 &&
		strings.Contains(errOut, "no-such-thing"); !notThere &&
		(err == nil || !strings.Contains(err.Error(), "no-such-thing")) {
		t.Errorf("a command that is not there: %q, %v", errOut, err)
	}
	if !s.lacks(t, "EndOfInput") {
		if out, _, err = run(strings.NewReader("to and fro"), "sh", "-c", "cat; echo; echo end"); err != nil ||
			out != "to and fro\nend\n" {
			t.Errorf("end of input: got %q, %v", out, err)
		}
	}
}

// sizes are those that a terminal takes one after the other.
type sizes []remotecommand.TerminalSize

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(*s) == 0 {
		return nil
	}
	first := (*s)[0]
	*s = (*s)[1:]
	return &first
}

func execTerminal(t *testing.T, s *suite, with executor) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	r, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Tty: true, Stdin: true, Stdout: true,
		Cmd: []string{
			"sh", "-c", `while [ "$(stty size)" != "17 91" ]; do sleep 0.02; done; echo term=$TERM; exit 4`,
		},
	})
	must(t)(err)
	var out bytes.Buffer
	in, keep := io.Pipe()
	defer keep.Close()
	err = stream(t, with, r.GetUrl(),
		remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{{Width: 91, Height: 17}}})
	var code utilexec.ExitError
	if !errors.As(err, &code) || code.ExitStatus() != 4 || !strings.Contains(out.String(), "term=xterm") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func attach(t *testing.T, s *suite, with executor) {
	p := s.pod(t, nil)
	id := p.run("main", func(c *runtimeapi.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, "sh", "-c",
		"read x; echo got $x; read y; echo err $y >&2; cat")
	r, err := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	must(t)(err)
	var out, errOut bytes.Buffer
	err = stream(t, with, r.GetUrl(),
		remotecommand.StreamOptions{Stdin: strings.NewReader("one\ntwo\nthree\n"), Stdout: &out, Stderr: &errOut})
	if err != nil || out.String() != "got one\nthree\n" || errOut.String() != "err two\n" {
		t.Errorf("got %q, %q, %v", out.String(), errOut.String(), err)
	}
	if st := p.exited(id); st.GetExitCode() != 0 {
		t.Errorf("got %v", st)
	}
	var logged strings.Builder
	for _, l := range p.log(id) {
		if l.stream == "stdout" {
			logged.WriteString(l.text + "\n")
		}
	}
	if logged.String() != "got one\nthree\n" {
		t.Errorf("log: got %q", logged.String())
	}
}

func portForward(t *testing.T, s *suite, with dialer) {
	p := s.pod(t, nil)
	p.run("main", nil, "sh", "-c",
		"while :; do echo four | nc -l -p 8080 127.0.0.1; done & while :; do echo six | nc -l -p 8081 ::1; done")
	get := func(port string) string {
		r, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: p.id, Port: []int32{8080, 8081}})
		must(t)(err)
		conn := forwarder(t, r.GetUrl(), with)
		defer conn.Close()
		h := http.Header{}
		h.Set(corev1.StreamType, corev1.StreamTypeError)
		h.Set(corev1.PortHeader, port)
		h.Set(corev1.PortForwardRequestIDHeader, "1")
		errs, err := conn.CreateStream(h)
		must(t)(err)
		errs.Close()
		h.Set(corev1.StreamType, corev1.StreamTypeData)
		data, err := conn.CreateStream(h)
		if err != nil {
			// Nobody listens yet, and the stream may be reset for that before it is accepted.
			t.Logf("forward port %s: %v", port, err)
			return ""
		}
		defer data.Close()
		b, _ := io.ReadAll(data)
		return string(b)
	}
	p.eventually("an answer over IPv4", func() bool { return get("8080") == "four\n" })
	if !s.lacks(t, "IPv6") {
		p.eventually("an answer over IPv6", func() bool { return get("8081") == "six\n" })
	}
}

type dialer func(*url.URL) (httpstream.Dialer, error)

func spdyDialer(u *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), err
}

func webSocketDialer(u *url.URL) (httpstream.Dialer, error) {
	return portforward.NewSPDYOverWebsocketDialer(u, &rest.Config{})
}

// forwarder is the connection of a port-forward.
func forwarder(t *testing.T, raw string, with dialer) httpstream.Connection {
	t.Helper()
	u, err := url.Parse(raw)
	must(t)(err)
	d, err := with(u)
	must(t)(err)
	conn, _, err := d.Dial(portforward.PortForwardProtocolV1Name)
	must(t)(err)
	return conn
}

func streamRequests(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	r, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	must(t)(err)
	for i := range 2 {
		if err := stream(t, spdyExecutor, r.GetUrl(),
			remotecommand.StreamOptions{Stdout: io.Discard}); (err == nil) != (i == 0) {
			t.Errorf("a URL used %d times: %v", i+1, err)
		}
	}
	for what, req := range map[string]*runtimeapi.ExecRequest{
		"no stream":               {ContainerId: id, Cmd: []string{"true"}},
		"a terminal and an error": {ContainerId: id, Cmd: []string{"true"}, Tty: true, Stdout: true, Stderr: true},
	} {
		if _, err := s.Exec(t.Context(), req); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// streamsOfWhatHasEnded asks for streams, and opens some that were handed out in time.
func streamsOfWhatHasEnded(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	ask := map[string]func() (string, error){
		"ExecSync": func() (string, error) {
			_, err := p.exec(id, 60, "true")
			return "", err
		},
		"Exec": func() (string, error) {
			r, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
			return r.GetUrl(), err
		},
		"Attach": func() (string, error) {
			r, err := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
			return r.GetUrl(), err
		},
	}
	urls := map[string]string{}
	for what, f := range ask {
		url, err := f()
		must(t)(err)
		urls[what] = url
	}
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t)(err)
	for what, f := range ask {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), "CONTAINER_EXITED") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	for what, with := range map[string]executor{"Exec": spdyExecutor, "Attach": webSocketExecutor} {
		if err := stream(t, with, urls[what], remotecommand.StreamOptions{Stdout: io.Discard}); err == nil ||
			!strings.Contains(err.Error(), "CONTAINER_EXITED") {
			t.Errorf("%s that was handed out in time: got %v", what, err)
		}
	}
}
