package system

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
)

// files is how many files the agent has open.
func (n *Node) files() int {
	n.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(list)
}

// TestHostileClients has clients that send odd bytes, say nothing, and go in the middle of a stream. The agent goes on,
// and nothing of them is left, neither in it nor in the container.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	n := startNode(t, fmt.Sprintf("--port=%d", port), "--address=127.0.0.1")
	n.apply("web.yaml", pod("web", sleeping))
	before := n.waitReady("web")
	prefix := filepath.Join(n.Dir, "ann")
	n.must("cert", "ann", "--out", prefix)
	admin := &rest.Config{
		Host: fmt.Sprintf("https://localhost:%d", port),
		TLSClientConfig: rest.TLSClientConfig{CertFile: prefix + ".crt", KeyFile: prefix + ".key", CAFile: prefix +
			"-ca.crt"},
	}

	for _, c := range []struct {
		method, path string
		code         int
		says         string
	}{
		{"POST", "/run/default/web-node/main?cmd=" + url.QueryEscape("echo \xff\xfe\x01 ü"), 200, "\xff\xfe\x01 ü\n"},
		{"POST", "/run/default/web-node/main?cmd=echo+a%00b", 500, "holds a NUL byte"},
		{"POST", "/run/default/web-node/main?cmd=", 400, "nothing to execute"},
		// more than the kernel takes for an argument
		{
			"POST", "/run/default/web-node/main?cmd=" + url.QueryEscape("echo "+strings.Repeat("x", 200_000)), 500,
			"rgument list too long",
		},
		{"POST", "/run/default/web-node/%ff%00?cmd=id", 404, ""},
		{"POST", "/run/default/%2e%2e/main?cmd=id", 404, ""},
		{"GET", "/containerLogs/default/web-node/main?tailLines=-1", 400, "tailLines"},
		{"GET", "/containerLogs/default/web-node/main?tailLines=99999999999999999999", 400, "tailLines"},
		{"GET", "/containerLogs/default/web-node/main?limitBytes=-5&sinceSeconds=-1&sinceTime=x", 400, ""},
		{"POST", "/exec/default/web-node/main?command=id&output=1", 400, "upgrade"},
		{"GET", "/exec/default/web-node/main?command=id", 400, ""},
		{"PUT", "/exec/default/web-node/main?command=id&output=1", 405, ""},
	} {
		code, body := ask(t, admin, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s %.80q: %d %.200q, want %d", c.method, c.path, code, body, c.code)
		}
	}

	cert, err := tls.LoadX509KeyPair(admin.CertFile, admin.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(admin.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	secure := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	files := n.files()
	var silent []*tls.Conn
	for range 20 {
		for _, protocol := range []string{"v4.channel.k8s.io", "v5.channel.k8s.io"} {
			d := websocket.Dialer{TLSClientConfig: secure, Subprotocols: []string{protocol}}
			at := strings.Replace(admin.Host, "https", "wss", 1) +
				"/exec/default/web-node/main?command=cat&input=1&output=1&error=1"
			ws, resp, err := d.DialContext(t.Context(), at, nil)
			if err != nil {
				t.Fatalf("%s: %v", protocol, err)
			}
			resp.Body.Close()
			// on channels that there are and that there are not
			for _, message := range [][]byte{{0, 'h', 'i'}, {77, 1, 2}, {}, {4, '{'}, {255}} {
				if err := ws.WriteMessage(websocket.BinaryMessage, message); err != nil {
					break // it was thrown out
				}
			}
			ws.NetConn().Close() // without a word
		}
		conn, err := tls.Dial("tcp", strings.TrimPrefix(admin.Host, "https://"), secure)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
		if _, err := io.WriteString(conn, "POST /run/default/web-node/main?cmd=cat HTTP/1.1\r\nHost: x\r\nContent-Type: "+
			"application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	if code, body := ask(t, admin, "GET", "/pods"); code != http.StatusOK {
		t.Errorf("with clients that are silent: %d %s", code, body)
	}
	for _, c := range silent {
		c.Close()
	}
	n.eventually("nothing of the clients to be left", func() error {
		out := n.sh("web", "ps -o comm")
		if slices.Contains(strings.Fields(out), "cat") {
			return fmt.Errorf("in the container runs %q", out)
		}
		if now := n.files(); now > files+5 {
			return fmt.Errorf("the agent has %d open files, and had %d", now, files)
		}
		return nil
	})
	n.requireSame(before, n.waitReady("web"))
}
