package cri

import (
	"context"
	"fmt"
	"io"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/stdio"
	"github.com/berth-node/berth/cri/stream"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// streams is where the streams of clients lead to: it is a stream.Runtime.
type streams struct {
	containers *container.Containers
	pods       *sandbox.Sandboxes
}

// Exec runs a command for a client that is connected now.
func (s streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.Writer, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.Table.Running(id)
	if err != nil {
		return asStatus(err)
	}
	x, err := s.containers.Execs.ExecInput(c, container.Command{ID: id, Cmd: cmd, TTY: tty})
	if err != nil {
		return asStatus(err)
	}
	code, err := stdio.Run(ctx, k, x, in, out, errOut, resize)
	if failed, ok := stdio.NotExecuted(err, cmd); ok {
		to, end := errOut, "\n"
		if tty { // which has one stream
			to, end = out, "\r\n"
		}
		if to != nil {
			_, _ = io.WriteString(to, failed.Message+end) // the client is gone, or not
		}
		return exitError(failed.Code)
	}
	if err != nil {
		return asStatus(err)
	}
	return exitError(code)
}

// Attach connects a client with the first process of a container.
func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error {
	c, k, err := s.containers.Table.Running(id)
	if err != nil {
		return asStatus(err)
	}
	at, err := k.Attach(ctx, c.ID)
	if err != nil {
		return asStatus(s.pods.Watcher.Heard(c.Sandbox, err))
	}
	defer at.Close()
	stop := context.AfterFunc(ctx, func() { at.Close() })
	defer stop()
	if in != nil && at.Stdin != nil {
		go stdio.Feed(at.Stdin, in)
	}
	go stdio.Resize(ctx, at, resize)
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

// urls hand out the URLs of streams, and run the commands whose output is wanted as a whole.
type urls struct {
	server *stream.Server
	ctrs   *container.Containers
	pods   *sandbox.Sandboxes
}

// Exec returns the URL of a stream with a command in a container.
func (u *urls) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return call(ctx, "Exec", func(context.Context) (*runtimeapi.ExecResponse, error) {
		if len(r.GetCmd()) == 0 {
			return nil, fault.Invalidf("exec: command is empty")
		}
		c, _, err := u.ctrs.Table.Running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		r.ContainerId = c.ID
		return u.server.Exec(r)
	})
}

// Attach returns the URL of a stream with the first process of a container.
func (u *urls) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return call(ctx, "Attach", func(context.Context) (*runtimeapi.AttachResponse, error) {
		c, _, err := u.ctrs.Table.Running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		r.ContainerId = c.ID
		return u.server.Attach(r)
	})
}

// PortForward returns the URL of streams to ports of a sandbox.
func (u *urls) PortForward(ctx context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return call(ctx, "PortForward", func(context.Context) (*runtimeapi.PortForwardResponse, error) {
		sb, err := u.pods.Table.ByID.Get(r.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		if _, err := sb.Live(); err != nil {
			return nil, err
		}
		r.PodSandboxId = sb.ID
		return u.server.PortForward(r)
	})
}

// ExecSync runs a command in a container and waits for it.
func (u *urls) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return call(ctx, "ExecSync", func(ctx context.Context) (*runtimeapi.ExecSyncResponse, error) {
		return u.ctrs.Execs.ExecSync(ctx, r)
	})
}

// exitError is how the streaming server wants to be told a code that is not 0.
func exitError(code int32) error {
	if code == 0 {
		return nil
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
}
