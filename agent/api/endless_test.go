package api_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"testing"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-node/berth/agent/api"
)

// babbler answers every request so and never ends it. said hears how much it could say.
func babbler(t *testing.T, begin, again string, most int) (at string, said <-chan int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard := make(chan int, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				n, text := 0, begin
				for n < most {
					m, err := c.Write([]byte(text))
					if n += m; err != nil {
						break
					}
					text = again
				}
				heard <- n
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/x", heard
}

// TestEndlessUpgrade has a server of streams that says something else than a stream, and never ends it.
//
// Connections are closed by who has them, not by the collector of garbage, which is off.
func TestEndlessUpgrade(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const most = 256 << 20 // far more than what sockets hold
	n := serveNetwork(t, api.Network)
	cfg := n.as(t, "ann", "system:masters")
	for _, c := range []struct{ name, begin, again string }{
		{"headers", "HTTP/1.1 101 Switching Protocols\r\n", strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 60)},
		{"a header", "HTTP/1.1 101 Switching Protocols\r\nX-A: ", strings.Repeat("a", 64<<10)},
		{"a status", "HTTP/1.1 101 ", strings.Repeat("a", 64<<10)},
		{"a refusal", "HTTP/1.1 500 No\r\n\r\n", strings.Repeat("a", 64<<10)},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, said := babbler(t, c.begin, c.again, most)
			n.rt.at = at
			defer func() { n.rt.at = "" }()
			// By SPDY an answer that is no upgrade goes on to the client, who is not held up by it here.
			u := n.url + "/exec/default/web-node/main?command=x&output=1"
			ex, err := remotecommand.NewWebSocketExecutor(cfg, "GET", u)
			if err != nil {
				t.Fatal(err)
			}
			if err := ex.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
				t.Error("the command has ended well")
			}
			if s := <-said; s >= most {
				t.Errorf("exec: %d bytes are read", s)
			}
			forward, err := url.Parse(n.url + "/portForward/default/web-node")
			if err != nil {
				t.Fatal(err)
			}
			d, err := portforward.NewSPDYOverWebsocketDialer(forward, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if conn, _, err := d.Dial(portforward.PortForwardProtocolV1Name); err == nil {
				conn.Close()
				t.Error("a port is forwarded")
			}
			if s := <-said; s >= most {
				t.Errorf("port: %d bytes are read", s)
			}
		})
	}
}
