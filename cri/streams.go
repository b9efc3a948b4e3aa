package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// streams serves what exec, attach and port-forward hand out URLs of: each with a token that is good once, on loopback.
type streams struct {
	containers *containers
	pods       *pods
	urls       streaming.Server
	http       *http.Server
	listener   net.Listener
}

func newStreams(cs *containers, ps *pods) (*streams, error) {
	s := &streams{containers: cs, pods: ps}
	var err error
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	cfg := streaming.DefaultConfig
	cfg.Addr = s.listener.Addr().String()
	cfg.BaseURL = &url.URL{Scheme: "http", Host: cfg.Addr, Path: "/"}
	if s.urls, err = streaming.NewServer(cfg, s); err != nil {
		s.listener.Close()
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	s.http = &http.Server{Handler: s.urls, ReadHeaderTimeout: 30 * time.Second}
	return s, nil
}

func (s *streams) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// Exec runs a command for a client that is connected now.
func (s *streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.running(id)
	if err != nil {
		return asStatus(err)
	}
	x, err := s.containers.execInput(c, execCommand{id: id, cmd: cmd, tty: tty})
	if err != nil {
		return asStatus(err)
	}
	code, err := runExec(ctx, k, x, in, writer(out), writer(errOut), resize)
	if err != nil {
		return asStatus(err)
	}
	return exitError(code)
}

// writer turns a nil pointer in an interface, which is how a stream that was not asked for comes, into a nil interface.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

// Attach connects a client with the first process of a container.
func (s *streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.running(id)
	if err != nil {
		return asStatus(err)
	}
	at, err := k.Attach(ctx, c.id)
	if err != nil {
		return asStatus(err)
	}
	defer at.Close()
	stop := context.AfterFunc(ctx, func() { at.Close() })
	defer stop()
	if in != nil && at.Stdin != nil {
		go func() {
			_, _ = io.Copy(at.Stdin, in)
			at.Stdin.Close()
		}()
	}
	go func() {
		for size := range resize {
			if at.Resize(size.Width, size.Height) != nil {
				return
			}
		}
	}()
	ended := make(chan struct{}, 2)
	copyOut := func(to io.Writer, from io.Reader) {
		if to != nil && from != nil {
			if _, err := io.Copy(to, from); err != nil {
				at.Close() // the client is gone
			}
		} else if from != nil {
			_, _ = io.Copy(io.Discard, from)
		}
		ended <- struct{}{}
	}
	go copyOut(writer(out), at.Stdout)
	go copyOut(writer(errOut), at.Stderr)
	<-ended
	<-ended
	return nil
}

// Exec returns the URL of a stream with a command in a container.
func (s *Server) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return call(ctx, "Exec", func(context.Context) (*runtimeapi.ExecResponse, error) {
		if len(r.GetCmd()) == 0 {
			return nil, invalidf("exec: command is empty")
		}
		c, _, err := s.ctrs.running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		r.ContainerId = c.id
		return s.streams.urls.GetExec(r)
	})
}

// Attach returns the URL of a stream with the first process of a container.
func (s *Server) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return call(ctx, "Attach", func(context.Context) (*runtimeapi.AttachResponse, error) {
		c, _, err := s.ctrs.running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		r.ContainerId = c.id
		return s.streams.urls.GetAttach(r)
	})
}

// PortForward returns the URL of streams to ports of a sandbox.
func (s *Server) PortForward(ctx context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return call(ctx, "PortForward", func(context.Context) (*runtimeapi.PortForwardResponse, error) {
		sb, err := s.pods.byID.get(r.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		if _, err := sb.live(); err != nil {
			return nil, err
		}
		r.PodSandboxId = sb.id
		return s.streams.urls.GetPortForward(r)
	})
}

// ExecSync runs a command in a container and waits for it.
func (s *Server) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return call(ctx, "ExecSync", func(ctx context.Context) (*runtimeapi.ExecSyncResponse, error) { return s.ctrs.execSync(ctx, r) })
}
