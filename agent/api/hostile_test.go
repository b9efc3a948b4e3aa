package api_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/api"
)

// cutOff stands for the answer of a server that has closed the connection before it had all of the request.
const cutOff = 499

// raw sends a request as it is, without a client that would clean its path, and returns the code and the body of the
// answer.
func (n *network) raw(t *testing.T, request string) (int, string) {
	t.Helper()
	key, csr := newRequest(t, "ann", []string{"system:masters"})
	cert, err := n.authority.SignClient(csr, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(n.authority.Bundle())
	conn, err := tls.Dial("tcp", strings.TrimPrefix(n.url, "https://"),
		&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil { // for a test that has failed
		t.Fatal(err)
	}
	_, sent := io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if errors.Is(sent, unix.ECONNRESET) || errors.Is(sent, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return cutOff, ""
	}
	if err = errors.Join(sent, err); err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	return resp.StatusCode, string(body)
}

// TestHostilePaths asks for what is outside of the logs, and for pods and containers whose names lead elsewhere.
// Nothing of that is answered with anything, or waited for.
func TestHostilePaths(t *testing.T) {
	n := serveNetwork(t, api.Network)
	logs := n.cfg.SystemLogs
	secret := filepath.Join(filepath.Dir(logs), "pki", "ca.pem")
	for name, make := range map[string]func(string) error{
		"fifo":     func(p string) error { return unix.Mkfifo(p, 0o600) },
		"absolute": func(p string) error { return os.Symlink("/etc/passwd", p) },
		"up":       func(p string) error { return os.Symlink("../pki", p) },
		"proc":     func(p string) error { return os.Symlink("/proc/self/environ", p) },
		"loop":     func(p string) error { return os.Symlink("loop", p) },
		"to-fifo":  func(p string) error { return os.Symlink("fifo", p) },
		// zeros without end
		"null": func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
	} {
		if err := make(filepath.Join(logs, name)); err != nil {
			if os.IsPermission(err) {
				continue
			}
			t.Fatal(err)
		}
	}
	for _, path := range []string{
		"/logs/../pki/ca.pem", "/logs/%2e%2e/pki/ca.pem", "/logs/..%2fpki%2fca.pem", "/logs/%2e%2e%2fpki%2fca.pem", "/logs//" + secret, "/logs/%2f" + secret,
		"/logs/a/../../pki/ca.pem", "/logs/up/ca.pem", "/logs/up%2fca.pem", "/logs/absolute", "/logs/proc", "/logs/loop", "/logs/fifo", "/logs/to-fifo", "/logs/null",
		"/logs/%00", "/logs/leak%00.txt", "/logs/%ff%fe", "/logs/" + strings.Repeat("a/", 4000), "/logs/" +
			strings.Repeat("x", 5000), `/logs/..\..\pki\ca.pem`,
		"/containerLogs/default/..%2f..%2fpki/main", "/containerLogs/default/web-node/..%2f..", "/containerLogs/%00/%ff/%0a", "/pods/default/%2e%2e", "/pods/default/..%2fweb-node",
		"/runningpods/../logs/../pki/ca.pem", "/configz/%2e%2e/logs/..%2fpki%2fca.pem", "//logs//..//pki//ca.pem", "/./logs/./../pki/ca.pem",
	} {
		code, body := n.raw(t, "GET "+path+" HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
		if code < 300 || strings.Contains(body, "PRIVATE KEY") || strings.Contains(body, "root:") ||
			strings.Contains(body, "PATH=") {
			t.Errorf("%.80s: %d %.200q", path, code, body)
		}
	}
	if code, body := n.raw(t, "GET /logs/syslog HTTP/1.1\r\nHost: node\r\nConnection: "+
		"close\r\n\r\n"); code != http.StatusOK || body != "boot\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := n.raw(t, "GET /logs/ HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"); code != http.StatusOK ||
		!strings.Contains(body, "fifo") {
		t.Errorf("%d %q", code, body)
	}
	for _, request := range []string{
		"CONNECT /exec/../pods HTTP/1.1\r\nHost: node\r\n\r\n", "GET http://elsewhere/logs/../pki/ca.pem HTTP/1.1\r\nHost: " +
			"node\r\n\r\n",
		"TRACE /pods HTTP/1.1\r\nHost: node\r\n\r\n", "GET /pods HTTP/1.1\r\nHost: node\r\nX: " + strings.Repeat("y", 2<<20) +
			"\r\n\r\n",
		"POST /run/default/web-node/none?cmd=x HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\nContent-Length: " +
			"5\r\n\r\nzz\r\n",
	} {
		if code, body := n.raw(t, request); code < 300 {
			t.Errorf("%.60q: %d %.200q", request, code, body)
		}
	}
	big := fmt.Sprintf("PATCH /pods/default/%s/status HTTP/1.1\r\nHost: node\r\nContent-Type: "+
		"application/strategic-merge-patch+json\r\nContent-Length: %d\r\n\r\n", "web-node", 5<<20)
	if code, body := n.raw(t, big+strings.Repeat(" ", 4<<20)); code < 400 {
		t.Errorf("a body that is too large: %d %.200q", code, body)
	}
}
