package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

type run func(ctx context.Context, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) error

// command is a process with streams: a new one, or a container's first.
type command struct {
	kind string // exec or attach
	opts remotecommand.Options
	run  run
}

func (c command) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		c.serveV5(w, r)
	case c.kind == "attach":
		remotecommand.ServeAttach(w, r, c, "", "", "", &c.opts, idle, creation, remotecommand.SupportedStreamingProtocols)
	default:
		remotecommand.ServeExec(w, r, c, "", "", "", nil, &c.opts, idle, creation, remotecommand.SupportedStreamingProtocols)
	}
}

// ExecInContainer is how the library runs an exec. What it is told here it knows only from us.
func (c command) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return told(c.run(ctx, in, out, errOut, resize))
}

// AttachContainer is how the library runs an attach.
func (c command) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	return told(c.run(ctx, in, out, errOut, resize))
}

// told is the error that a client is to be told. The library also logs it, and that a client has gone is no news to
// anybody.
func told(err error) error {
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// serveV5 speaks v5.channel.k8s.io, which the library has no server of: version 4 with a word for the end of a stream.
// The connection reads that word itself.
func (c command) serveV5(w http.ResponseWriter, r *http.Request) {
	channels := make([]wsstream.ChannelType, 5)
	channels[remotecommand.StreamErr] = wsstream.WriteChannel
	channels[remotecommand.StreamResize] = wsstream.ReadChannel
	if c.opts.Stdin {
		channels[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if c.opts.Stdout {
		channels[remotecommand.StreamStdOut] = wsstream.WriteChannel
	}
	if c.opts.Stderr {
		channels[remotecommand.StreamStdErr] = wsstream.WriteChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	conn.SetIdleTimeout(idle)
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return // the client has been told
	}
	defer conn.Close()
	var in io.Reader
	if c.opts.Stdin {
		in = streams[remotecommand.StreamStdIn]
	}
	err = c.run(r.Context(), in, streams[remotecommand.StreamStdOut], streams[remotecommand.StreamStdErr], sizes(r.Context(), streams[remotecommand.StreamResize]))
	// A client that has gone is not told.
	_ = json.NewEncoder(streams[remotecommand.StreamErr]).Encode(c.status(err))
}

// status is how a client is told of the end.
func (c command) status(err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	var exit utilexec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: err.Error(),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitStatus())}}},
		}
	}
	return metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("%s: %v", c.kind, err),
	}
}

// sizes reads the sizes of a client's terminal until it has no more to tell.
func sizes(ctx context.Context, from io.Reader) <-chan remotecommand.TerminalSize {
	out := make(chan remotecommand.TerminalSize)
	go func() {
		defer close(out)
		for dec := json.NewDecoder(from); ; {
			var s remotecommand.TerminalSize
			if dec.Decode(&s) != nil {
				return
			}
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
