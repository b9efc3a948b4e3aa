package api_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // what users of client-go have
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/access"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/api/pki"
)

// network is the API as others reach it, with the authority that says who they are.
type network struct {
	*fixture
	url       string
	authority *pki.Authority
}

func serveNetwork(t *testing.T, what api.Access) *network {
	t.Helper()
	f := start(t)
	dir := t.TempDir()
	authority, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	serving, err := pki.NewServing(authority, func() pki.Names { return pki.Names{Node: "node"} },
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var rules access.Rules
	for _, s := range []string{"group:system:masters=*", "group:system:monitoring=get:metrics,stats"} {
		r, err := access.ParseRule(s)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	logs := filepath.Join(dir, "log")
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(logs, "syslog"), []byte("boot\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "pki", "ca.pem"), filepath.Join(logs, "leak")); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "node_cpu_usage_seconds_total"},
		func() float64 { return 3 }))
	f.cfg.Metrics = map[string]prometheus.Gatherer{"/metrics/resource": reg}
	f.cfg.Node.Configz = func() any { return map[string]any{"port": 10250} }
	f.cfg.SystemLogs, f.cfg.CheckpointDir, f.cfg.Authority, f.cfg.Profiling = logs, filepath.Join(dir,
		"checkpoints"), authority, true
	guard := &access.Guard{
		Authenticators: []access.Authenticator{
			access.Certificates{Roots: func() *x509.CertPool {
				pool := x509.NewCertPool()
				for _, c := range authority.Trusted() {
					pool.AddCert(c)
				}
				return pool
			}},
		},
		Authorizer: rules, Next: api.New(f.cfg).Handler(what), Log: slog.New(slog.DiscardHandler),
	}
	srv := httptest.NewUnstartedServer(guard)
	cert, err := serving.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return &network{f, srv.URL, authority}
}

// as is how a client with a certificate of the node's authority connects.
func (n *network) as(t *testing.T, user string, groups ...string) *rest.Config {
	t.Helper()
	key, request := newRequest(t, user, groups)
	cert, err := n.authority.SignClient(request, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{
		Host:            n.url,
		TLSClientConfig: rest.TLSClientConfig{CertData: cert, KeyData: key, CAData: n.authority.Bundle()},
	}
}

func get(t *testing.T, c *rest.Config, method, path string) (int, string) {
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
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if h, ok := tr.(interface{ CloseIdleConnections() }); ok {
		h.CloseIdleConnections()
	}
	return resp.StatusCode, string(b)
}

func TestWhoMayDoWhat(t *testing.T) {
	n := serveNetwork(t, api.Network)
	admin, monitor := n.as(t, "ann", "system:masters"), n.as(t, "prometheus", "system:monitoring")
	nobody := &rest.Config{Host: n.url, TLSClientConfig: rest.TLSClientConfig{CAData: n.authority.Bundle()}}
	other, err := pki.Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := (&network{n.fixture, n.url, other}).as(t, "ann", "system:masters")
	foreign.CAData = n.authority.Bundle()
	for _, c := range []struct {
		who          *rest.Config
		method, path string
		code         int
		says         string
	}{
		{admin, "GET", "/healthz", 200, "ok"},
		{admin, "GET", "/healthz?verbose", 200, "[+]syncloop ok\nhealthz check passed\n"},
		{admin, "GET", "/healthz/ping", 200, "ok"},
		{admin, "GET", "/healthz/syncloop", 200, "ok"},
		{admin, "GET", "/pods/", 200, `"kind":"PodList"`},
		{admin, "GET", "/runningpods/", 200, `"image":"img:1"`},
		{admin, "GET", "/configz", 200, `{"kubeletconfig":{"port":10250}}`},
		{admin, "GET", "/logs/", 200, `<a href="syslog">`},
		{admin, "GET", "/logs/syslog", 200, "boot\n"},
		{admin, "GET", "/logs/leak", 500, ""},
		{admin, "GET", "/logs/../pki/ca.pem", 307, ""},
		{admin, "POST", "/run/default/web-node/main?cmd=echo+hi", 200, "c1 [echo hi]"},
		{admin, "POST", "/run/default/web-node/u1/main?cmd=echo+hi", 200, "c1 [echo hi]"},
		{admin, "POST", "/run/default/web-node/u2/main?cmd=echo+hi", 404, ""},
		{admin, "POST", "/run/default/web-node/main?cmd=false", 500, "command 'false' exited with 1: no"},
		{admin, "POST", "/run/default/web-node/main", 400, "nothing to execute"},
		{admin, "POST", "/checkpoint/default/web-node/main", 200, "/checkpoint-web-node_default-main-"},
		{admin, "POST", "/checkpoint/default/web-node/late", 400, "not been started"},
		{admin, "GET", "/exec/default/web-node/main?command=x&output=1", 400, "upgrade"},
		{admin, "GET", "/exec/default/web-node/main?command=x", 400, "at least 1 of"},
		{admin, "GET", "/debug/pprof/cmdline", 200, "api.test"},
		{admin, "POST", "/certificates?ttl=1h", 404, ""},
		{monitor, "GET", "/metrics/resource", 200, "node_cpu_usage_seconds_total 3"},
		{monitor, "GET", "/pods", 403, "Forbidden (user=prometheus, verb=get, resource=nodes, subresource(s)=[pods proxy])"},
		{monitor, "POST", "/run/default/web-node/main?cmd=x", 403, ""},
		{nobody, "GET", "/metrics/resource", 401, "Unauthorized"},
		{foreign, "GET", "/pods", 401, "Unauthorized"},
	} {
		if code, body := get(t, c.who, c.method, c.path); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, code, body, c.code, c.says)
		}
	}
	if code, body := get(t, admin, "GET", "/logs/leak"); code == 200 || strings.Contains(body, "PRIVATE") {
		t.Errorf("a link out of the logs is followed: %d", code)
	}
}

func TestPartsOfTheAPI(t *testing.T) {
	for what, missing := range map[api.Access][]string{
		api.NoDebugging: {"/runningpods/", "/logs/", "/events", "/images"},
		api.ReadOnly:    {"/configz", "/runningpods/", "/logs/"},
		api.Health:      {"/pods", "/metrics/resource"},
	} {
		n := serveNetwork(t, what)
		admin := n.as(t, "ann", "system:masters")
		for _, path := range missing {
			if code, _ := get(t, admin, "GET", path); code != http.StatusNotFound {
				t.Errorf("%d serves %s: %d", what, path, code)
			}
		}
		if code, _ := get(t, admin, "GET", "/healthz"); code != http.StatusOK {
			t.Errorf("%d: healthz %d", what, code)
		}
	}
}

// TestScrape reads metrics as the metrics server and Prometheus do.
func TestScrape(t *testing.T) {
	n := serveNetwork(t, api.Network)
	code, body := get(t, n.as(t, "ms", "system:monitoring"), "GET", "/metrics/resource")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil || families["node_cpu_usage_seconds_total"].GetMetric()[0].GetGauge().GetValue() != 3 {
		t.Errorf("%v, %v", families, err)
	}
}

// TestStreamsOfClients runs commands with each executor of client-go.
func TestStreamsOfClients(t *testing.T) {
	n := serveNetwork(t, api.Network)
	cfg := n.as(t, "ann", "system:masters")
	target := func(path, query string) *url.URL {
		u, err := url.Parse(n.url + path + "?" + query)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for name, executor := range map[string]func(u *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(cfg, "POST", u) },
		"WebSocket v5": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(cfg, "GET", u.String())
		},
		"WebSocket v4": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(cfg, "GET", u.String(), "v4.channel.k8s.io")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(path, query string, o remotecommand.StreamOptions) error {
				t.Helper()
				ex, err := executor(target(path, query))
				if err != nil {
					t.Fatal(err)
				}
				return ex.StreamWithContext(t.Context(), o)
			}
			var o, e bytes.Buffer
			so := remotecommand.StreamOptions{Stdout: &o, Stderr: &e}
			query := "command=cat&output=1&error=1"
			if name != "WebSocket v4" { // in which a client cannot say that its input has ended
				so.Stdin, query = strings.NewReader("input"), query+"&input=1"
			}
			err := run("/exec/default/web-node/main", query, so)
			if err != nil || !strings.HasPrefix(o.String(), "c1 [\"cat\"] tty=false\n") || e.String() != "complaint" ||
				so.Stdin != nil && !strings.HasSuffix(o.String(), "input") {
				t.Errorf("%v, %q, %q", err, o.String(), e.String())
			}
			var code exec.CodeExitError
			if err := run("/exec/default/web-node/u1/main", "command=fail&output=1",
				remotecommand.StreamOptions{Stdout: io.Discard}); !errors.As(err, &code) || code.Code != 7 {
				t.Errorf("exit code: %v", err)
			}
			o.Reset()
			err = run("/exec/default/web-node/main", "command=sh&output=1&tty=1",
				remotecommand.StreamOptions{Stdout: &o, Tty: true, TerminalSizeQueue: &sizes{}})
			if err != nil || !strings.HasSuffix(o.String(), "tty=true\n80x24") {
				t.Errorf("terminal: %v, %q", err, o.String())
			}
			// What breaks behind the agent is not the command's good end either. Clients of SPDY see the very
			// connection, and know no better.
			if name != "SPDY" {
				o.Reset()
				if err := run("/exec/default/web-node/main", "command=cut&output=1",
					remotecommand.StreamOptions{Stdout: &o}); err == nil {
					t.Errorf("cut off after %q: no error", o.String())
				}
			}
			if name == "WebSocket v4" {
				return
			}
			o.Reset()
			err = run("/attach/default/web-node/main", "input=1&output=1",
				remotecommand.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &o})
			if err != nil || o.String() != "attached to c1\nin" {
				t.Errorf("attach: %v, %q", err, o.String())
			}
		})
	}
}

// TestForwardingOfClients forwards a port with each dialer of client-go.
func TestForwardingOfClients(t *testing.T) {
	n := serveNetwork(t, api.Network)
	cfg := n.as(t, "ann", "system:masters")
	u, err := url.Parse(n.url + "/portForward/default/web-node")
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]func() (httpstream.Dialer, error){
		"SPDY": func() (httpstream.Dialer, error) {
			tr, upgrader, err := spdy.RoundTripperFor(cfg)
			return spdy.NewDialer(upgrader, &http.Client{Transport: tr}, "POST", u), err
		},
		"WebSocket": func() (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(u, cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := dialer()
			if err != nil {
				t.Fatal(err)
			}
			stop, ready := make(chan struct{}), make(chan struct{})
			pf, err := portforward.New(d, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			pingForwarded(t, pf, ready, stop)
		})
	}
}

// newRequest makes a key and asks for a certificate for it, both in PEM.
func newRequest(t *testing.T, user string, groups []string) (key, request []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})
}

// TestSignCertificate asks on the socket, where alone it is served.
func TestSignCertificate(t *testing.T) {
	f := start(t)
	_, request := newRequest(t, "ann", []string{"ops"})
	cert, authorities, err := f.client.SignCertificate(t.Context(), request, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := pki.ParseCerts(cert)
	if err != nil || signed[0].Subject.CommonName != "ann" {
		t.Fatalf("%v, %v", signed, err)
	}
	by, err := pki.ParseCerts(authorities)
	if err != nil || signed[0].CheckSignatureFrom(by[0]) != nil {
		t.Errorf("not signed by the authority: %v", err)
	}
	for _, c := range []struct {
		request  []byte
		lifetime time.Duration
		says     string
	}{{[]byte("bad"), time.Hour, "no certificate request"}, {request, 0, "cannot be valid for 0s"}} {
		var e *client.Error
		if _, _, err := f.client.SignCertificate(t.Context(), c.request, c.lifetime); !errors.As(err, &e) ||
			e.Code != http.StatusBadRequest || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.says, err)
		}
	}
}
