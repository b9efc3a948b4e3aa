package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// ErrNoStatus says that the streams of a command ended, and nobody said how the command did.
var ErrNoStatus = errors.New("the connection ended before the command did: how it ends is not known, and its output " +
	"may be cut off")

// Command runs a command, or attaches to one, at the URL of a server of streams by SPDY. A connection that breaks looks
// to client-go like a command that ended well: its last word is a status, and none is taken for a good one. Here it is
// [ErrNoStatus].
func Command(ctx context.Context, rt httpstream.UpgradeRoundTripper, u *url.URL, o remotecommand.StreamOptions) error {
	told := &toldStatus{UpgradeRoundTripper: rt}
	ex, err := remotecommand.NewSPDYExecutorForTransports(told, spdy.NewUpgraderForStreaming(told), http.MethodPost, u)
	if err != nil {
		return fmt.Errorf("prepare stream: %w", err)
	}
	if err := ex.StreamWithContext(ctx, o); err != nil || !told.missing() {
		return err
	}
	return ErrNoStatus
}

// maxRefusal is how much is told of why a server does not upgrade.
const maxRefusal = 16 << 10

type refusal struct {
	io.Reader
	io.Closer
}

// toldStatus is an upgrade whose connection's error stream is looked at.
type toldStatus struct {
	httpstream.UpgradeRoundTripper
	version string
	some    atomic.Bool
}

// missing says whether there should have been a status: before version 4 of the protocol nothing is said of what ended
// well.
func (t *toldStatus) missing() bool {
	return (t.version == streamcommand.StreamProtocolV4Name || t.version == streamcommand.StreamProtocolV5Name) &&
		!t.some.Load()
}

// NewConnection implements [httpstream.UpgradeRoundTripper].
func (t *toldStatus) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = refusal{io.LimitReader(resp.Body, maxRefusal), resp.Body} // it is read as a whole
	}
	conn, err := t.UpgradeRoundTripper.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	t.version = resp.Header.Get(httpstream.HeaderProtocolVersion)
	return &toldConnection{conn, &t.some}, nil
}

type toldConnection struct {
	httpstream.Connection
	some *atomic.Bool
}

// CreateStream implements [httpstream.Connection].
func (c *toldConnection) CreateStream(h http.Header) (httpstream.Stream, error) {
	s, err := c.Connection.CreateStream(h)
	if err != nil || h.Get(corev1.StreamType) != corev1.StreamTypeError {
		return s, err
	}
	return &toldStream{s, c.some}, nil
}

// RemoveStreams implements [httpstream.Connection], which knows its own streams alone.
func (c *toldConnection) RemoveStreams(streams ...httpstream.Stream) {
	for _, s := range streams {
		if t, ok := s.(*toldStream); ok {
			s = t.Stream
		}
		c.Connection.RemoveStreams(s)
	}
}

type toldStream struct {
	httpstream.Stream
	some *atomic.Bool
}

// Read implements [io.Reader].
func (s *toldStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if n > 0 {
		s.some.Store(true)
	}
	return n, err
}
