// Package stream serves what exec, attach and port-forward hand out URLs of, in the protocols that clients speak: SPDY,
// WebSocket with the channels of remote commands, up to version 5, which can end the input, and for port-forward also
// SPDY inside of a WebSocket.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	// idle is how long a connection may be without any message. Shells are left open over lunch.
	idle = 4 * time.Hour
	// creation is how long a client may take from connecting to having made its streams.
	creation = remotecommand.DefaultStreamCreationTimeout
)

// ErrGone is the cause of a context's end when the client's connection has ended before what it asked for. The server's
// own end is one for its clients.
var ErrGone = errors.New("the client has gone")

// Runtime is where the streams lead to. Streams that a client did not ask for are nil, or have no data. The context
// ends when the client goes, with the cause ErrGone.
type Runtime interface {
	// Exec runs a command. An exit code that is not 0 is an ExitError of k8s.io/utils/exec.
	Exec(ctx context.Context, container string, cmd []string, in io.Reader, out, errOut io.Writer, tty bool, resize <-chan remotecommand.TerminalSize) error
	// Attach connects with the first process of a container, until that has ended.
	Attach(ctx context.Context, container string, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error
	// PortForward copies between a client and a port on the sandbox's loopback. The caller closes the client's side.
	PortForward(ctx context.Context, sandbox string, port int32, client io.ReadWriter) error
}

// Server hands out URLs on loopback and serves them.
type Server struct {
	runtime  Runtime
	listener net.Listener
	base     string
	offers   offers
}

// Listen opens a port of loopback. URLs may be handed out from then on; clients wait until Serve serves them.
func Listen(r Runtime) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	return &Server{runtime: r, listener: l, base: "http://" + l.Addr().String()}, nil
}

// Close closes a server that Serve was not called of.
func (s *Server) Close() error { return s.listener.Close() }

// Serve serves streams until ctx ends, which ends those there are.
func (s *Server) Serve(ctx context.Context) error {
	clients, part := context.WithCancelCause(context.WithoutCancel(ctx))
	defer part(nil)
	h := &http.Server{
		Handler: s, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return clients },
	}
	stop := context.AfterFunc(ctx, func() {
		part(ErrGone) // Close knows only of connections that are HTTP
		h.Close()
	})
	defer stop()
	if err := h.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// ServeHTTP serves a URL that has been handed out.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		http.Error(w, "streams are opened by GET or POST", http.StatusMethodNotAllowed)
		return
	}
	serve, ok := s.offers.take(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	c := &client{ResponseWriter: w, gone: func() { cancel(ErrGone) }}
	// A server that ends does not close connections which are not HTTP any more.
	stop := context.AfterFunc(r.Context(), c.cut)
	defer stop()
	defer c.end()
	serve(c, r.WithContext(ctx))
}

// Exec hands out a URL of a command.
func (s *Server) Exec(r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	opts := remotecommand.Options{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), TTY: r.GetTty()}
	url, err := s.offerCommand("exec", opts, func(ctx context.Context, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error {
		return s.runtime.Exec(ctx, r.GetContainerId(), r.GetCmd(), in, out, errOut, opts.TTY, resize)
	})
	return &runtimeapi.ExecResponse{Url: url}, err
}

// Attach hands out a URL of a container's first process.
func (s *Server) Attach(r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	opts := remotecommand.Options{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), TTY: r.GetTty()}
	url, err := s.offerCommand("attach", opts, func(ctx context.Context, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error {
		return s.runtime.Attach(ctx, r.GetContainerId(), in, out, errOut, resize)
	})
	return &runtimeapi.AttachResponse{Url: url}, err
}

func (s *Server) offerCommand(kind string, opts remotecommand.Options, run run) (string, error) {
	if opts.TTY && opts.Stderr {
		return "", status.Errorf(codes.InvalidArgument, "%s: tty and stderr are both set, and a terminal has one output", kind)
	}
	if !opts.Stdin && !opts.Stdout && !opts.Stderr {
		return "", status.Errorf(codes.InvalidArgument, "%s: none of stdin, stdout and stderr is set", kind)
	}
	return s.offer(kind, command{kind, opts, run}.serve)
}

// PortForward hands out a URL of a sandbox's ports. SPDY names the port of each connection; the channels of a WebSocket
// are those of the ports in the request.
func (s *Server) PortForward(r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	for _, p := range r.GetPort() {
		if p < 1 || p > 65535 {
			return nil, status.Errorf(codes.InvalidArgument, "portforward: port %d is not one of 1 to 65535", p)
		}
	}
	opts := portforward.V4Options{Ports: r.GetPort()}
	url, err := s.offer("portforward", func(w http.ResponseWriter, req *http.Request) {
		servePorts(w, req, opts, func(port int32, client io.ReadWriter) error {
			return s.runtime.PortForward(req.Context(), r.GetPodSandboxId(), port, client)
		})
	})
	return &runtimeapi.PortForwardResponse{Url: url}, err
}

func (s *Server) offer(kind string, serve http.HandlerFunc) (string, error) {
	path, err := s.offers.add(kind, serve)
	if err != nil {
		return "", err
	}
	return s.base + path, nil
}
