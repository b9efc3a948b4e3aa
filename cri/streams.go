package cri

import (
	"context"
	"io"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// streams is where the streams of clients lead to: it is a stream.Runtime.
type streams struct {
	containers *containers
	pods       *pods
}

// Exec runs a command for a client that is connected now.
func (s streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.Writer, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.running(id)
	if err != nil {
		return asStatus(err)
	}
	x, err := s.containers.execInput(c, execCommand{id: id, cmd: cmd, tty: tty})
	if err != nil {
		return asStatus(err)
	}
	code, err := runExec(ctx, k, x, in, out, errOut, resize)
	if failed, ok := notExecuted(err, cmd); ok {
		to, end := errOut, "\n"
		if tty { // which has one stream
			to, end = out, "\r\n"
		}
		if to != nil {
			_, _ = io.WriteString(to, failed.message+end) // the client is gone, or not
		}
		return exitError(failed.code)
	}
	if err != nil {
		return asStatus(err)
	}
	return exitError(code)
}

// Attach connects a client with the first process of a container.
func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.running(id)
	if err != nil {
		return asStatus(err)
	}
	at, err := k.Attach(ctx, c.id)
	if err != nil {
		return asStatus(s.pods.heard(c.sandbox, err))
	}
	defer at.Close()
	stop := context.AfterFunc(ctx, func() { at.Close() })
	defer stop()
	if in != nil && at.Stdin != nil {
		go input(at.Stdin, in)
	}
	go resizeAll(ctx, at, resize)
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
	go copyOut(out, at.Stdout)
	go copyOut(errOut, at.Stderr)
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
		return s.urls.Exec(r)
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
		return s.urls.Attach(r)
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
		return s.urls.PortForward(r)
	})
}

// ExecSync runs a command in a container and waits for it.
func (s *Server) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return call(ctx, "ExecSync", func(ctx context.Context) (*runtimeapi.ExecSyncResponse, error) { return s.ctrs.execSync(ctx, r) })
}
