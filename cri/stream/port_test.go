package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // deprecated, and still what client-go has in its signatures
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dialers are what client-go connects to ports by.
var dialers = map[string]func(*url.URL) (httpstream.Dialer, error){
	"spdy": func(u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), err
	},
	"tunnel": func(u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialer(u, &rest.Config{})
	},
}

// echo answers with the port and what has come, and fails on port 99.
func echo(_ context.Context, port int32, client io.ReadWriter) error {
	if port == 99 {
		return errors.New("nobody listens")
	}
	b, err := io.ReadAll(client)
	fmt.Fprintf(client, "%d: %s", port, b)
	return err
}

func TestPorts(t *testing.T) {
	s := serve(t, &fake{port: echo})
	for name, dialer := range dialers {
		t.Run(name, func(t *testing.T) {
			r, err := s.PortForward(&runtimeapi.PortForwardRequest{})
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, r.Url, dialer)
			defer conn.Close()
			large := strings.Repeat("x", 1<<20)
			for id, c := range []struct{ port, say, want, wantErr string }{
				{"80", "hello", "80: hello", ""}, {"65535", "", "65535: ", ""}, {"99", "", "", "nobody listens"}, {"81", large, "81: " + large, ""},
			} {
				got, gotErr := talk(t, conn, id, c.port, c.say)
				if got != c.want || !strings.Contains(gotErr, c.wantErr) || (gotErr == "") != (c.wantErr == "") {
					t.Errorf("port %s: got %d bytes, %q", c.port, len(got), gotErr)
				}
			}
		})
	}
}

func dial(t *testing.T, raw string, dialer func(*url.URL) (httpstream.Dialer, error)) httpstream.Connection {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dialer(u)
	if err != nil {
		t.Fatal(err)
	}
	conn, protocol, err := d.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatal(err)
	}
	if protocol != portforward.PortForwardProtocolV1Name {
		t.Errorf("got protocol %q", protocol)
	}
	return conn
}

// talk says something to a port, ends it, and returns what comes back.
func talk(t *testing.T, conn httpstream.Connection, id int, port, say string) (data, problem string) {
	t.Helper()
	h := http.Header{}
	h.Set(corev1.StreamType, corev1.StreamTypeError)
	h.Set(corev1.PortHeader, port)
	h.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(id))
	errs, err := conn.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	errs.Close()
	h.Set(corev1.StreamType, corev1.StreamTypeData)
	// One that fails is reset while it is made, or while this is written: the server need not have answered that it
	// takes it.
	both, err := conn.CreateStream(h)
	var b []byte
	if err == nil {
		_, _ = io.WriteString(both, say)
		both.Close()
		b, _ = io.ReadAll(both)
		defer conn.RemoveStreams(both)
	}
	e, _ := io.ReadAll(errs)
	conn.RemoveStreams(errs)
	if err != nil && len(e) == 0 {
		t.Fatal(err)
	}
	return string(b), string(e)
}

func TestPortsClientGoes(t *testing.T) {
	cause, begun := make(chan error), make(chan struct{})
	s := serve(t, &fake{port: func(ctx context.Context, _ int32, _ io.ReadWriter) error {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	}})
	for name, dialer := range dialers {
		t.Run(name, func(t *testing.T) {
			begun = make(chan struct{})
			r, err := s.PortForward(&runtimeapi.PortForwardRequest{})
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, r.Url, dialer)
			for _, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
				h := http.Header{}
				h.Set(corev1.StreamType, kind)
				h.Set(corev1.PortHeader, "80")
				h.Set(corev1.PortForwardRequestIDHeader, "1")
				if _, err := conn.CreateStream(h); err != nil {
					t.Fatal(err)
				}
			}
			<-begun
			conn.Close()
			if err := <-cause; !errors.Is(err, ErrGone) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A WebSocket without SPDY has two channels for each port that the request names; the first message of each is the
// port.
func TestPortChannels(t *testing.T) {
	s := serve(t, &fake{port: func(_ context.Context, port int32, client io.ReadWriter) error {
		b := make([]byte, 5)
		_, err := io.ReadFull(client, b)
		fmt.Fprintf(client, "%d: %s", port, b)
		return err
	}})
	r, err := s.PortForward(&runtimeapi.PortForwardRequest{Port: []int32{80, 81}})
	if err != nil {
		t.Fatal(err)
	}
	ws, err := websocket.Dial(strings.Replace(r.Url, "http", "ws", 1), "v4.channel.k8s.io", "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var got []string
	for range 4 {
		var b []byte
		if err := websocket.Message.Receive(ws, &b); err != nil {
			t.Fatal(err)
		}
		got = append(got, string(b))
	}
	if want := []string{"\x00\x50\x00", "\x01\x50\x00", "\x02\x51\x00", "\x03\x51\x00"}; strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q", got)
	}
	if err := websocket.Message.Send(ws, []byte("\x02hello")); err != nil {
		t.Fatal(err)
	}
	var b []byte
	if err := websocket.Message.Receive(ws, &b); err != nil || string(b) != "\x0281: hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestTunnelProtocols(t *testing.T) {
	s := serve(t, &fake{port: echo})
	r, err := s.PortForward(&runtimeapi.PortForwardRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if ws, err := websocket.Dial(strings.Replace(r.Url, "http", "ws", 1), "SPDY/3.1+other.k8s.io", "http://localhost"); err == nil {
		ws.Close()
		t.Error("a protocol that nobody knows was accepted")
	}
}
