package stream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// forward connects a client with a port.
type forward func(port int32, client io.ReadWriter) error

// PortForward is how the library forwards. Its context is nobody's.
func (f forward) PortForward(_ context.Context, _, _ string, port int32, client io.ReadWriteCloser) error {
	return f(port, client)
}

func servePorts(w http.ResponseWriter, r *http.Request, opts portforward.V4Options, f forward) {
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		serveTunnel(w, r, opts, f)
		return
	}
	portforward.ServePortForward(w, r, f, "", "", &opts, idle, creation, portforward.SupportedProtocols)
}

// serveTunnel serves SPDY that is the data of a WebSocket: to the library the WebSocket is the connection of a client
// that asks for SPDY.
func serveTunnel(w http.ResponseWriter, r *http.Request, opts portforward.V4Options, f forward) {
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			if !slices.Contains(c.Protocol, portforward.WebsocketsSPDYTunnelingPortForwardV1) {
				return fmt.Errorf("none of the protocols %q is %q", c.Protocol, portforward.WebsocketsSPDYTunnelingPortForwardV1)
			}
			c.Protocol = []string{portforward.WebsocketsSPDYTunnelingPortForwardV1}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			inner := r.Clone(r.Context())
			inner.Header = http.Header{}
			inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
			inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
			inner.Header.Set(httpstream.HeaderProtocolVersion, strings.TrimPrefix(ws.Config().Protocol[0], portforward.WebsocketsSPDYTunnelingPrefix))
			portforward.ServePortForward(tunnel{ws}, inner, f, "", "", &opts, idle, creation, portforward.SupportedProtocols)
		},
	}.ServeHTTP(w, r)
}

// tunnel is a WebSocket as the answer to a request for SPDY. That its protocol changes the client has been told before.
type tunnel struct{ ws *websocket.Conn }

func (tunnel) Header() http.Header         { return http.Header{} }
func (tunnel) WriteHeader(int)             {}
func (tunnel) Write(p []byte) (int, error) { return len(p), nil }

func (t tunnel) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.ws, bufio.NewReadWriter(bufio.NewReader(t.ws), bufio.NewWriter(t.ws)), nil
}
