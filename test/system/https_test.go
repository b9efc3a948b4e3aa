package system

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/berth-node/berth/test/plane"
)

// freePort is a port that is free, and stays so until somebody of this test listens at it.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := strconv.Atoi(plane.Port(t, "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// ask sends a request with what a user of `berth cert` has.
func ask(t *testing.T, c *rest.Config, method, path string) (int, string) {
	t.Helper()
	tr, err := rest.TransportFor(c)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestHTTPS reaches a pod over the network with certificates of the node's own authority, which a crash does not
// change.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	port, health := freePort(t), freePort(t)
	n := startNode(t, fmt.Sprintf("--port=%d", port), "--address=127.0.0.1", fmt.Sprintf("--healthz-port=%d", health))
	n.apply("web.yaml", pod("web", sleeping))
	n.waitReady("web")

	certificate := func(user string, args ...string) *rest.Config {
		t.Helper()
		prefix := filepath.Join(n.Dir, user)
		n.must(append([]string{"cert", user, "--out", prefix}, args...)...)
		if fi, err := os.Stat(prefix + ".key"); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("key: %v, %v", fi.Mode(), err)
		}
		return &rest.Config{
			Host: fmt.Sprintf("https://localhost:%d", port),
			TLSClientConfig: rest.TLSClientConfig{CertFile: prefix + ".crt", KeyFile: prefix + ".key", CAFile: prefix +
				"-ca.crt"},
		}
	}
	admin := certificate("ann")
	monitor := certificate("prometheus", "--group", "system:monitoring")
	nobody := rest.CopyConfig(admin)
	nobody.CertFile, nobody.KeyFile = "", ""
	for _, c := range []struct {
		who          *rest.Config
		method, path string
		code         int
		says         string
	}{
		{admin, "GET", "/pods", 200, `"name":"web-node"`},
		{admin, "GET", "/runningpods/", 200, `"name":"web-node"`},
		{admin, "GET", "/stats/summary", 200, `"web-node"`},
		{admin, "POST", "/run/default/web-node/main?cmd=echo+hello", 200, "hello\n"},
		{admin, "GET", "/debug/pprof/", 404, ""},
		{monitor, "GET", "/metrics/resource", 200, "node_cpu_usage_seconds_total"},
		{monitor, "GET", "/metrics/cadvisor", 200, "container_memory_working_set_bytes"},
		{monitor, "GET", "/containerLogs/default/web-node/main", 403, "Forbidden"},
		{nobody, "GET", "/pods", 401, "Unauthorized"},
	} {
		if code, body := ask(t, c.who, c.method, c.path); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %.300q", c.method, c.path, code, body)
		}
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", health))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", resp.Status)
	}

	n.kill()
	n.start()
	u, err := url.Parse(admin.Host +
		"/exec/default/web-node/main?command=sh&command=-c&command=cat%3Bexit+3&input=1&output=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, executor := range map[string]func() (remotecommand.Executor, error){
		"SPDY": func() (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(admin, "POST", u) },
		"WebSocket": func() (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(admin, "GET", u.String())
		},
	} {
		ex, err := executor()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = ex.StreamWithContext(t.Context(),
			remotecommand.StreamOptions{Stdin: strings.NewReader("through"), Stdout: &out})
		if code, ok := err.(exec.CodeExitError); !ok || code.Code != 3 || out.String() != "through" { //nolint:errorlint // the library returns it as it is
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
	}

	// Another node cannot have the port, and says so before it does anything.
	other := newNode(t, fmt.Sprintf("--port=%d", port), "--address=127.0.0.1")
	other.launch()
	<-other.exited
	if other.cmd.ProcessState.Success() || !strings.Contains(other.logTail(), "serve API by HTTPS") {
		t.Errorf("second node on the port: %s", other.logTail())
	}
	if _, e, code := other.berth("cert", "ann"); code != 3 {
		t.Errorf("no agent: %d %s", code, e)
	}
}
