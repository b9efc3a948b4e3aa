package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	clientforward "k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// streamSet says which streams a request for exec or attach wants.
type streamSet struct{ stdin, stdout, stderr, tty bool }

// streams reads what a request wants, by kubelet's names or by those of the API server. A terminal has no standard
// error of its own.
func streams(r *http.Request) (streamSet, error) {
	either := func(kubelet, server string) bool { return wants(r, kubelet) || wants(r, server) }
	s := streamSet{
		stdin: either("input", "stdin"), stdout: either("output", "stdout"), stderr: either("error", "stderr"),
		tty: wants(r, "tty"),
	}
	s.stderr = s.stderr && !s.tty
	if !s.stdin && !s.stdout && !s.stderr {
		return s, badRequest("you must specify at least 1 of stdin, stdout, stderr")
	}
	return s, nil
}

// stream connects the client with what the runtime serves at a URL for exec or attach.
func (e *entrance) stream(w http.ResponseWriter, r *http.Request, to string, want streamSet) error {
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		return e.translate(w, r, to, want)
	}
	return handOver(w, r, to)
}

// handOver lets the runtime's streaming server answer the request, with the connection that it upgrades.
func handOver(w http.ResponseWriter, r *http.Request, to string) error {
	u, err := streamURL(to)
	if err != nil {
		return err
	}
	if !httpstream.IsUpgradeRequest(r) {
		return badRequest("an upgrade to SPDY or WebSocket is needed")
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = u, u.Host
			// The client has shown them to the agent. They are nobody else's.
			pr.Out.Header.Del("Authorization")
		},
		// One connection for one request, never through a proxy of the environment: the server is on this machine.
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxUpgrade},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "reach the runtime's streaming server: "+err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// maxUpgrade is how much a streaming server may say before its streams: what reads that has no bound of its own.
const maxUpgrade = 64 << 10

// dialBounded connects to a server that may say no more than maxUpgrade before the header of its first answer ends.
func dialBounded(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &boundedHeader{Conn: conn, left: maxUpgrade}, nil
}

// boundedHeader is a connection of which one goroutine reads.
type boundedHeader struct {
	net.Conn
	left int
	tail [4]byte // the last that was read
	over bool    // the header is
}

// Read implements [net.Conn].
func (b *boundedHeader) Read(p []byte) (int, error) {
	if b.over {
		return b.Conn.Read(p)
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	for _, c := range p[:n] {
		b.tail = [4]byte{b.tail[1], b.tail[2], b.tail[3], c}
		if string(b.tail[:]) == "\r\n\r\n" || string(b.tail[2:]) == "\n\n" {
			b.over = true
			return n, err
		}
	}
	if b.left -= n; b.left == 0 {
		return 0, fmt.Errorf("the header of the answer has more than %d bytes", maxUpgrade)
	}
	return n, err
}

func streamURL(to string) (*url.URL, error) {
	u, err := url.Parse(to)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("runtime gave the URL %q", to)
	}
	return u, nil
}

// The channels of the protocol of exec and attach over a WebSocket.
const (
	stdinChannel = iota
	stdoutChannel
	stderrChannel
	errorChannel
	resizeChannel
)

// upgrade is the way to a runtime's stream, which no proxy is asked for. It is gone once.
type upgrade struct {
	httpstream.UpgradeRoundTripper
	conn net.Conn
}

func newUpgrade(u *url.URL) (*upgrade, error) {
	dial := dialBounded
	if u.Scheme == "https" { // its header cannot be seen from here
		dial = (&net.Dialer{}).DialContext
	}
	up := &upgrade{}
	way := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			conn, err = dial(ctx, network, addr)
			up.conn = conn
			return conn, err
		},
		TLSClientConfig: &tls.Config{}, // nil would take any certificate
	}
	rt, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: way, PingPeriod: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("prepare stream: %w", err)
	}
	up.UpgradeRoundTripper = rt
	return up, nil
}

// NewConnection implements [httpstream.UpgradeRoundTripper]. The library leaves the connection to a server that does
// not upgrade to the collector of garbage, and the server to write to it until then.
func (u *upgrade) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	conn, err := u.UpgradeRoundTripper.NewConnection(resp)
	if err != nil && u.conn != nil {
		u.conn.Close()
	}
	return conn, err
}

// translate speaks version 5 of the protocol, in which a client can close its standard input. The streaming servers of
// runtimes know it in SPDY, but over WebSockets only version 4, so that here one is turned into the other.
func (e *entrance) translate(w http.ResponseWriter, r *http.Request, to string, want streamSet) error {
	u, err := streamURL(to)
	if err != nil {
		return err
	}
	direct, err := newUpgrade(u)
	if err != nil {
		return err
	}
	channel := func(on bool, t wsstream.ChannelType) wsstream.ChannelType {
		if !on {
			return wsstream.IgnoreChannel
		}
		return t
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{streamcommand.StreamProtocolV5Name: {
		Binary: true,
		Channels: []wsstream.ChannelType{
			stdinChannel: channel(want.stdin, wsstream.ReadChannel), stdoutChannel: channel(want.stdout, wsstream.WriteChannel),
			stderrChannel: channel(want.stderr, wsstream.WriteChannel),
			errorChannel:  wsstream.WriteChannel, resizeChannel: wsstream.ReadChannel,
		},
	}})
	// The library takes for an error that the connection ends, which is how every stream does.
	quiet := klog.NewContext(r.Context(), klog.Logger{})
	_, ch, err := conn.Open(w, r.WithContext(quiet))
	if err != nil {
		e.log.Debug("no WebSocket", "path", r.URL.Path, "error", err)
		return nil // it has answered
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	sizes := newSizes(ch[resizeChannel], cancel)
	o := remotecommand.StreamOptions{Tty: want.tty}
	if want.stdin {
		o.Stdin = ch[stdinChannel]
	}
	if want.stdout {
		o.Stdout = ch[stdoutChannel]
	}
	if want.stderr {
		o.Stderr = ch[stderrChannel]
	}
	if want.tty {
		o.TerminalSizeQueue = sizes
	}
	// An empty message tells the client that the streams are there.
	_, _ = ch[stdoutChannel].Write(nil)
	data, err := json.Marshal(endOfStream(Command(ctx, direct, u, o)))
	if err != nil {
		return err
	}
	// A client that is gone needs no answer.
	_, _ = ch[errorChannel].Write(data)
	return nil
}

// endOfStream is how the end of a command is told.
func endOfStream(err error) metav1.Status {
	var code exec.CodeExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &code):
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: streamcommand.NonZeroExitCodeReason, Message: code.Error(),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type:    streamcommand.ExitCodeCauseType,
				Message: fmt.Sprint(code.Code),
			}}},
		}
	default:
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error(),
			Code: http.StatusInternalServerError,
		}
	}
}

// sizes are the sizes of the client's terminal. They are read without a terminal too: their end is that of the
// connection.
type sizes struct {
	next chan remotecommand.TerminalSize
}

func newSizes(in io.Reader, ended func()) *sizes {
	s := &sizes{make(chan remotecommand.TerminalSize, 1)}
	go func() {
		defer ended()
		defer close(s.next)
		for dec := json.NewDecoder(in); ; {
			var size remotecommand.TerminalSize
			if dec.Decode(&size) != nil {
				return
			}
			select {
			case <-s.next: // only the last one counts
			default:
			}
			s.next <- size
		}
	}()
	return s
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s.next
	if !ok {
		return nil
	}
	return &size
}

// tunnel carries the SPDY of a forwarded port inside a WebSocket.
func (e *entrance) tunnel(w http.ResponseWriter, r *http.Request, to string) error {
	upstream, err := dialSPDY(r.Context(), to)
	if err != nil {
		return err
	}
	defer upstream.Close()
	upgrader := websocket.Upgrader{
		Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPrefix + portforward.PortForwardV1Name},
		// no browser's credentials are taken, so that no origin is to be mistrusted
		CheckOrigin: func(*http.Request) bool { return true },
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		e.log.Debug("no WebSocket", "path", r.URL.Path, "error", err)
		return nil // it has answered
	}
	client := clientforward.NewTunnelingConnection("portforward", ws)
	done := make(chan struct{}, 2)
	join := func(a io.Writer, b io.Reader) {
		// That one side has gone is how this ends.
		_, _ = io.Copy(a, b)
		done <- struct{}{}
	}
	go join(upstream, client)
	go join(client, upstream)
	<-done
	client.Close()
	upstream.Close()
	<-done
	return nil
}

// upgraded is a connection of which some may have been read already.
type upgraded struct {
	net.Conn
	in *bufio.Reader
}

func (u upgraded) Read(p []byte) (int, error) { return u.in.Read(p) }

// dialSPDY asks the streaming server for an upgrade and returns the connection after it.
func dialSPDY(ctx context.Context, to string) (net.Conn, error) {
	u, err := streamURL(to)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("prepare stream: %w", err)
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardV1Name)
	conn, err := dialBounded(ctx, "tcp", u.Host)
	if err != nil {
		return nil, fmt.Errorf("reach the runtime's streaming server: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	out := upgraded{conn, bufio.NewReader(conn)}
	err = req.Write(conn)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(out.in, req)
	}
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("it answered %s", resp.Status)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("upgrade at the runtime's streaming server: %w", err)
	}
	return out, nil
}
