package probes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// maxHeader is how much a server may say before the body of its answer: the status line, the header, and interim
	// answers (RFC 9110, section 15.2) before them. A header is kept in memory, and whoever sends it is the container
	// that is asked.
	maxHeader = 64 << 10
	// maxWindow is what a server may send in HTTP/2 before it is read, in bytes: Go takes 4 MiB, gRPC as much as the
	// line carries.
	maxWindow = 64 << 10
	// maxRedirects is how many redirections are followed.
	maxRedirects = 10
	userAgent    = "kube-probe/1.37 (berth)"
)

// dialer closes a connection with a reset: thousands of probes a minute would otherwise leave as many sockets in
// TIME_WAIT. None lives long enough to be kept alive.
var dialer = net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	}); e != nil {
		return e
	}
	return err
}}

func execQuestion(a *corev1.ExecAction, run Exec) Question {
	return func(ctx context.Context) (Outcome, string) {
		code, output, err := run(ctx, a.Command)
		switch {
		case errors.Is(err, ErrNotAsked):
			return Unknown, err.Error()
		case ctx.Err() != nil:
			return Failure, fmt.Sprintf("command timed out: %q", strings.Join(a.Command, " "))
		case err != nil:
			return Unknown, err.Error()
		case code != 0:
			return Failure, string(output[:min(len(output), MaxOutput)])
		}
		return Success, string(output[:min(len(output), MaxOutput)])
	}
}

func tcpQuestion(a *corev1.TCPSocketAction, t Target) (Question, error) {
	addr, err := address(a.Host, a.Port, t)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (Outcome, string) {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return Failure, err.Error()
		}
		conn.Close()
		return Success, ""
	}, nil
}

func grpcQuestion(a *corev1.GRPCAction, t Target) Question {
	addr := net.JoinHostPort(t.PodIP, strconv.Itoa(int(a.Port)))
	security := insecure.NewCredentials()
	if a.Mode != nil && *a.Mode == corev1.GRPCProbeModeTLS {
		// The API's mode is TLS without verification.
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	return func(ctx context.Context) (Outcome, string) {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithUserAgent(userAgent), grpc.WithNoProxy(),
			grpc.WithTransportCredentials(security), grpc.WithMaxHeaderListSize(maxHeader),
			// A size that is set does not grow with the speed of the line.
			grpc.WithInitialWindowSize(maxWindow), grpc.WithInitialConnWindowSize(maxWindow),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxOutput)),
			grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", a) }))
		if err != nil {
			return Failure, err.Error()
		}
		defer conn.Close()
		var service string
		if a.Service != nil {
			service = *a.Service
		}
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return Failure, "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
		case err != nil:
			return Failure, err.Error()
		case resp.Status != grpc_health_v1.HealthCheckResponse_SERVING:
			return Failure, fmt.Sprintf("service unhealthy (responded with %q)", resp.Status)
		}
		return Success, "service healthy"
	}
}

func httpQuestion(a *corev1.HTTPGetAction, t Target) (Question, error) {
	addr, err := address(a.Host, a.Port, t)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		// The API takes any string as a path; what cannot be parsed is sent as it is.
		u = &url.URL{Path: a.Path}
	}
	u.Scheme, u.Host = strings.ToLower(string(a.Scheme)), addr
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	header := http.Header{}
	for _, h := range a.HTTPHeaders {
		header.Add(h.Name, h.Value)
	}
	host := header.Get("Host")
	header.Del("Host")
	if _, ok := header["Accept"]; !ok {
		header.Set("Accept", "*/*")
	}
	if _, ok := header["User-Agent"]; !ok {
		header.Set("User-Agent", userAgent)
	}
	request := func() *http.Request {
		return &http.Request{Method: http.MethodGet, URL: u, Host: host, Header: header, Close: true}
	}
	if a.Protocol != nil && *a.Protocol == corev1.HTTPProtocolHTTP2 {
		return func(ctx context.Context) (Outcome, string) { return get(ctx, roundTrip2, request()) }, nil
	}
	// The first request is the same each time. One that cannot be made is an answer of the probe's, and nothing that is
	// wrong with it.
	first, _ := written(request())
	ask := func(ctx context.Context, req *http.Request) (code int, location, body string, err error) {
		text := first
		if text == nil || req.URL != u { // the other ones are redirections
			if text, err = written(req); err != nil {
				return 0, "", "", err
			}
		}
		return roundTrip(ctx, req, text)
	}
	return func(ctx context.Context) (Outcome, string) { return get(ctx, ask, request()) }, nil
}

// written is a request as it is sent in HTTP/1.1.
func written(req *http.Request) ([]byte, error) {
	var b bytes.Buffer
	if err := req.Write(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// asker sends a request on a connection of its own.
type asker func(ctx context.Context, req *http.Request) (code int, location, body string, err error)

// get asks, and follows redirections on the same host.
func get(ctx context.Context, ask asker, req *http.Request) (Outcome, string) {
	first := req.URL.Hostname()
	for range maxRedirects {
		code, location, body, err := ask(ctx, req)
		if err != nil {
			return Failure, fmt.Sprintf("Get %q: %v", req.URL, err)
		}
		if location == "" || code < 300 || code >= 400 {
			if code < 200 || code >= 400 {
				return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", code)
			}
			return Success, body
		}
		next, err := req.URL.Parse(location)
		if err != nil {
			return Failure, fmt.Sprintf("Get %q: redirect to %q: %v", req.URL, location, err)
		}
		if next.Hostname() != first {
			// As under kubelet: the server answers, and where else it points is not its health.
			return Success, "Probe terminated redirects, Response body: " + body
		}
		req.URL, req.Host = next, ""
	}
	return Failure, fmt.Sprintf("stopped after %d redirects", maxRedirects)
}

// readers are what answers are read with: each has a buffer.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4096) }}

// roundTrip asks in HTTP/1.1, with the request as it is sent. It does without http.Transport, whose two goroutines and
// pools a connection cost more than the question.
func roundTrip(ctx context.Context, req *http.Request, text []byte) (code int, location, body string, err error) {
	addr := req.URL.Host
	if req.URL.Port() == "" {
		addr = net.JoinHostPort(req.URL.Hostname(), map[string]string{"http": "80", "https": "443"}[req.URL.Scheme])
	}
	conn, err := send(ctx, req, addr, text)
	if err != nil {
		return 0, "", "", err
	}
	defer conn.Close()
	r := readers.Get().(*bufio.Reader) // nothing else is in there
	most := io.LimitedReader{R: conn, N: maxHeader}
	r.Reset(&most)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	resp, err := readHeader(r, req)
	if err != nil && most.N <= 0 {
		err = fmt.Errorf("the header of the answer has more than %d bytes", maxHeader)
	}
	if err != nil {
		return 0, "", "", cause(ctx, err)
	}
	// The body has its own bound, and so have what is between its chunks and the trailer behind them: net/http reads
	// those into r.
	most.N = math.MaxInt64
	// It is not closed: that would read an endless one to its end. It ends with the connection.
	return answer(ctx, resp)
}

// send connects, and sends the request.
func send(ctx context.Context, req *http.Request, addr string, text []byte) (io.ReadCloser, error) {
	if to, err := netip.ParseAddrPort(addr); err == nil && to.Addr().Zone() == "" && req.URL.Scheme == "http" {
		return openLine(ctx, to, text)
	}
	tcp, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// The context also ends when the container does; a deadline alone would let the probe outlive it.
	conn := cut{tcp, tcp, context.AfterFunc(ctx, func() { tcp.Close() })}
	if req.URL.Scheme == "https" {
		// A probe asks whether the server answers, not who it is: certificates are not verified, as under kubelet.
		conn.Conn = tls.Client(tcp, &tls.Config{InsecureSkipVerify: true, ServerName: serverName(req)}) // see above
	}
	if _, err := conn.Write(text); err != nil {
		conn.Close()
		return nil, cause(ctx, err)
	}
	return conn, nil
}

// cut is a connection that the end of a context closes. It is closed below of what encrypts it.
type cut struct {
	net.Conn
	tcp  net.Conn
	stop func() bool
}

func (c cut) Close() error {
	c.stop()
	return c.tcp.Close()
}

// readHeader reads an answer up to its body. Interim ones are none: another one follows.
func readHeader(r *bufio.Reader, req *http.Request) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, req)
		if err != nil || resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// roundTrip2 asks in HTTP/2 without TLS, which the server must be known to speak (RFC 9113, section 3.3).
func roundTrip2(ctx context.Context, req *http.Request) (code int, location, body string, err error) {
	transport := &http.Transport{
		DialContext: dialer.DialContext, Protocols: new(http.Protocols), MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxWindow, MaxReceiveBufferPerConnection: maxWindow},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return 0, "", "", cause(ctx, err)
	}
	defer resp.Body.Close() // resets the stream
	return answer(ctx, resp)
}

// answer reads what came back.
func answer(ctx context.Context, resp *http.Response) (code int, location, body string, err error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxOutput))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, "", "", cause(ctx, err)
	}
	return resp.StatusCode, resp.Header.Get("Location"), string(b), nil
}

// cause is why a connection that the context's end has closed has failed.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func serverName(req *http.Request) string {
	if req.Host != "" {
		host, _, err := net.SplitHostPort(req.Host)
		if err != nil {
			return req.Host
		}
		return host
	}
	return req.URL.Hostname()
}

// address is where a probe connects to: the pod, unless the probe names a host.
func address(host string, port intstr.IntOrString, t Target) (string, error) {
	if host == "" {
		host = t.PodIP
	}
	n := port.IntValue()
	if port.Type == intstr.String {
		n = 0
		for _, p := range t.Container.Ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
		if n == 0 {
			if i, err := strconv.Atoi(port.StrVal); err == nil {
				n = i
			}
		}
	}
	if n < 1 || n > 65535 {
		return "", fmt.Errorf("make probe: container %s has no port %s", t.Container.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}
