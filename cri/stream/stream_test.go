package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilclientexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	serverside "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

func TestMain(m *testing.M) {
	// client-go's pings notice the end of their connection only when the next is due.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// fake is a runtime whose commands are functions.
type fake struct {
	command func(ctx context.Context, in io.Reader, out, errOut io.Writer, resize <-chan serverside.TerminalSize) error
	port    func(ctx context.Context, port int32, client io.ReadWriter) error
}

func (f *fake) Exec(ctx context.Context, _ string, _ []string, in io.Reader, out, errOut io.Writer, _ bool, resize <-chan serverside.TerminalSize) error {
	return f.command(ctx, in, out, errOut, resize)
}

func (f *fake) Attach(ctx context.Context, _ string, in io.Reader, out, errOut io.Writer, resize <-chan serverside.TerminalSize) error {
	return f.command(ctx, in, out, errOut, resize)
}

func (f *fake) PortForward(ctx context.Context, _ string, port int32, client io.ReadWriter) error {
	return f.port(ctx, port, client)
}

func serve(t *testing.T, f *fake) *Server {
	t.Helper()
	s, err := Listen(f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// protocols are those of remote commands, by the executors of client-go.
var protocols = map[string]func(string) (remotecommand.Executor, error){
	"spdy": func(raw string) (remotecommand.Executor, error) {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	},
	"websocket v4": func(raw string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, raw, "v4.channel.k8s.io")
	},
	"websocket": func(raw string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, raw)
	},
	"websocket, any version": func(raw string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, raw, "v4.channel.k8s.io", "v5.channel.k8s.io")
	},
}

// eachProtocol runs a command's client by each protocol, for exec and for attach.
func eachProtocol(t *testing.T, s *Server, opts serverside.Options, do func(t *testing.T, stream func(remotecommand.StreamOptions) error)) {
	for name, executor := range protocols {
		for kind, offer := range map[string]func() (string, error){
			"exec": func() (string, error) {
				r, err := s.Exec(&runtimeapi.ExecRequest{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY})
				return r.GetUrl(), err
			},
			"attach": func() (string, error) {
				r, err := s.Attach(&runtimeapi.AttachRequest{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY})
				return r.GetUrl(), err
			},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				u, err := offer()
				if err != nil {
					t.Fatal(err)
				}
				e, err := executor(u)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				do(t, func(opts remotecommand.StreamOptions) error { return e.StreamWithContext(ctx, opts) })
			})
		}
	}
}

func hasClose(t *testing.T) bool { return !strings.HasSuffix(t.Name(), "v4") }

func TestCommandStreams(t *testing.T) {
	f := &fake{command: func(_ context.Context, in io.Reader, out, errOut io.Writer, _ <-chan serverside.TerminalSize) error {
		got := make([]byte, 3)
		if _, err := io.ReadFull(in, got); err != nil {
			return err
		}
		fmt.Fprintf(out, "got %s", got)
		fmt.Fprint(errOut, "problem")
		return nil
	}}
	s := serve(t, f)
	eachProtocol(t, s, serverside.Options{Stdin: true, Stdout: true, Stderr: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		var out, errOut bytes.Buffer
		err := stream(remotecommand.StreamOptions{Stdin: strings.NewReader("abcdef"), Stdout: &out, Stderr: &errOut})
		if err != nil || out.String() != "got abc" || errOut.String() != "problem" {
			t.Errorf("got %q, %q, %v", out.String(), errOut.String(), err)
		}
	})
}

// The end of the input is no end of the output.
func TestInputEnds(t *testing.T) {
	f := &fake{command: func(_ context.Context, in io.Reader, out, _ io.Writer, _ <-chan serverside.TerminalSize) error {
		all, err := io.ReadAll(in)
		fmt.Fprintf(out, "got %s", all)
		return err
	}}
	s := serve(t, f)
	eachProtocol(t, s, serverside.Options{Stdin: true, Stdout: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		if !hasClose(t) {
			t.Skip("version 4 over WebSocket has no word for the end of the input")
		}
		var out bytes.Buffer
		if err := stream(remotecommand.StreamOptions{Stdin: strings.NewReader("to and fro"), Stdout: &out}); err != nil || out.String() != "got to and fro" {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
}

func TestExitCodes(t *testing.T) {
	var ended error
	f := &fake{command: func(context.Context, io.Reader, io.Writer, io.Writer, <-chan serverside.TerminalSize) error {
		return ended
	}}
	s := serve(t, f)
	ended = utilexec.CodeExitError{Err: errors.New("exit code 9"), Code: 9}
	eachProtocol(t, s, serverside.Options{Stdout: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		if strings.Contains(t.Name(), "attach_spdy") || strings.Contains(t.Name(), "attach_websocket_v4") {
			t.Skip("an attach has no exit code in the library")
		}
		var code utilclientexec.ExitError
		if err := stream(remotecommand.StreamOptions{Stdout: io.Discard}); !errors.As(err, &code) || code.ExitStatus() != 9 {
			t.Errorf("got %v", err)
		}
	})
	ended = errors.New("no such command")
	eachProtocol(t, s, serverside.Options{Stdout: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		if err := stream(remotecommand.StreamOptions{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "no such command") {
			t.Errorf("got %v", err)
		}
	})
}

type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	s, ok := <-q
	if !ok {
		return nil
	}
	return &s
}

func TestTerminalSizes(t *testing.T) {
	f := &fake{command: func(_ context.Context, _ io.Reader, out, _ io.Writer, resize <-chan serverside.TerminalSize) error {
		for range 2 {
			s := <-resize
			fmt.Fprintf(out, "%dx%d ", s.Width, s.Height)
		}
		return nil
	}}
	s := serve(t, f)
	eachProtocol(t, s, serverside.Options{Stdin: true, Stdout: true, TTY: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		q := make(sizeQueue, 2)
		q <- remotecommand.TerminalSize{Width: 91, Height: 17}
		q <- remotecommand.TerminalSize{Width: 65535, Height: 1}
		close(q)
		var out bytes.Buffer
		err := stream(remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true, TerminalSizeQueue: q})
		if err != nil || out.String() != "91x17 65535x1 " {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
}

// What a command has written reaches a client that is slow, and that goes on sending what nobody reads.
func TestOutputIsWhole(t *testing.T) {
	const size = 8 << 20
	f := &fake{command: func(_ context.Context, _ io.Reader, out, _ io.Writer, _ <-chan serverside.TerminalSize) error {
		b := make([]byte, 1<<16)
		for range size / len(b) {
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
		return utilexec.CodeExitError{Err: errors.New("exit code 3"), Code: 3}
	}}
	s := serve(t, f)
	eachProtocol(t, s, serverside.Options{Stdin: true, Stdout: true}, func(t *testing.T, stream func(remotecommand.StreamOptions) error) {
		if strings.Contains(t.Name(), "attach") {
			t.Skip("as exec")
		}
		var out slow
		var code utilclientexec.ExitError
		err := stream(remotecommand.StreamOptions{Stdin: endless{}, Stdout: &out})
		if !errors.As(err, &code) || code.ExitStatus() != 3 || out != size {
			t.Errorf("got %d bytes, %v", out, err)
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type slow int

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(time.Millisecond / 2)
	*s += slow(len(p))
	return len(p), nil
}

func TestClientGoes(t *testing.T) {
	cause := make(chan error)
	f := &fake{command: func(ctx context.Context, _ io.Reader, out, _ io.Writer, _ <-chan serverside.TerminalSize) error {
		fmt.Fprint(out, "hello")
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return context.Cause(ctx)
	}}
	s := serve(t, f)
	for name, executor := range protocols {
		t.Run(name, func(t *testing.T) {
			r, err := s.Exec(&runtimeapi.ExecRequest{Stdin: true, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			e, err := executor(r.Url)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			in, keep := io.Pipe()
			defer keep.Close()
			out, hello := io.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: hello}) }()
			if _, err := io.ReadFull(out, make([]byte, len("hello"))); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-cause; !errors.Is(err, ErrGone) {
				t.Errorf("got %v", err)
			}
			<-ended
		})
	}
}

func TestRequests(t *testing.T) {
	s := serve(t, &fake{command: func(context.Context, io.Reader, io.Writer, io.Writer, <-chan serverside.TerminalSize) error {
		return nil
	}})
	for _, r := range []*runtimeapi.ExecRequest{{}, {Tty: true, Stdout: true, Stderr: true}} {
		if _, err := s.Exec(r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: got %v", r, err)
		}
	}
	for _, port := range []int32{0, -1, 65536} {
		if _, err := s.PortForward(&runtimeapi.PortForwardRequest{Port: []int32{port}}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("port %d: got %v", port, err)
		}
	}
	r, err := s.Exec(&runtimeapi.ExecRequest{Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	get := func(method, url string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		return resp.StatusCode
	}
	for _, c := range []struct {
		method, url string
		want        int
	}{
		{http.MethodPut, r.Url, http.StatusMethodNotAllowed},
		{http.MethodGet, strings.Replace(r.Url, "/exec/", "/attach/", 1), http.StatusNotFound},
		{http.MethodGet, s.base + "/exec/x", http.StatusNotFound},
		{http.MethodGet, r.Url, http.StatusBadRequest}, // no upgrade asked for
		{http.MethodGet, r.Url, http.StatusNotFound},   // used
	} {
		if got := get(c.method, c.url); got != c.want {
			t.Errorf("%s %s: got %d, want %d", c.method, c.url, got, c.want)
		}
	}
}

func TestOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o offers
		var paths []string
		for range maxOffers {
			p, err := o.add("exec", nil)
			if err != nil {
				t.Fatal(err)
			}
			paths = append(paths, p)
		}
		if _, err := o.add("exec", nil); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
		if _, ok := o.take(paths[0]); !ok {
			t.Error("a URL is not good")
		}
		if _, ok := o.take(paths[0]); ok {
			t.Error("a URL is good twice")
		}
		time.Sleep(validity)
		synctest.Wait()
		if _, ok := o.take(paths[1]); ok || len(o.byPath) > 0 {
			t.Error("a URL is good for ever")
		}
	})
}
