package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	mathbig "math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/reference"

	"github.com/berth-node/berth/cri/image/imagetest"
)

func TestBasic(t *testing.T) {
	reg := pushed(t)
	reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if u, p, _ := r.BasicAuth(); u != "me" || p != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	wantBlob(t, open(t, reg.Host, &Auth{Username: "me", Password: "secret"}))
	wantBlob(t, open(t, reg.Host, &Auth{
		Username: "me", Password: "secret", ServerAddress: "https://" + reg.Host + "/v2/",
	}))
	for name, a := range map[string]*Auth{
		"none": nil, "wrong": {Username: "me", Password: "wrong"}, "for another": {
			Username: "me", Password: "secret", ServerAddress: "other:5000",
		},
	} {
		if _, err := open(t, reg.Host, a).Tag(t.Context(), "v1"); !errors.Is(err, ErrDenied) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// tokens is a token server and what it guards.
type tokens struct {
	*httptest.Server
	mu     sync.Mutex
	valid  map[string]bool
	issued int
	fail   int // so many requests are answered 503
	asked  []string
	life   int // expires_in
}

func newTokens(t *testing.T) *tokens {
	s := &tokens{valid: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail > 0 {
		s.fail--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_ = r.ParseForm()
	u, p, _ := r.BasicAuth()
	switch {
	case r.Form.Get("grant_type") == "refresh_token" && r.Form.Get("refresh_token") == "identity":
	case r.Form.Get("grant_type") == "password" && r.Form.Get("username") == "me" && r.Form.Get("password") == "secret":
	case u == "me" && p == "secret":
	default:
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.asked = append(s.asked, r.Form.Get("scope")+" "+r.Form.Get("service"))
	s.issued++
	token := fmt.Sprint("token", s.issued)
	s.valid[token] = true
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": s.life})
}

func (s *tokens) guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s.mu.Lock()
	ok := s.valid[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	s.mu.Unlock()
	if !ok {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="the service"`, s.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	next.ServeHTTP(w, r)
}

func (s *tokens) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.valid)
}

func TestBearer(t *testing.T) {
	reg := pushed(t)
	s := newTokens(t)
	reg.Fault(s.guard)
	r := open(t, reg.Host, &Auth{Username: "me", Password: "secret"})
	if _, err := r.Tag(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, r)
	if s.issued != 1 || s.asked[0] != "repository:dir/big:pull the service" {
		t.Errorf("tokens asked for: %q", s.asked)
	}
	s.revoke()
	wantBlob(t, r)
	if s.issued != 2 {
		t.Errorf("%d tokens", s.issued)
	}
	s.revoke()
	s.fail = 2
	wantBlob(t, r)
	wantBlob(t, open(t, reg.Host, &Auth{IdentityToken: "identity"}))
	s.valid["given"] = true
	wantBlob(t, open(t, reg.Host, &Auth{RegistryToken: "given"}))
	for name, a := range map[string]*Auth{
		"none": nil, "wrong": {Username: "me", Password: "wrong"},
		"wrong token": {RegistryToken: "stolen"},
	} {
		if _, err := open(t, reg.Host, a).Tag(t.Context(), "v1"); !errors.Is(err, ErrDenied) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// TestRedirect: blobs are often somewhere else, and nobody there may see what the registry is shown.
func TestRedirect(t *testing.T) {
	dir := t.TempDir()
	reg, away := pushed(t), pushed(t)
	writeHosts(t, dir, reg.Host, fmt.Sprintf("server = 'http://%s'\n[header]\nX-Secret = 'header'\n", reg.Host))
	reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") == "" || r.Header.Get("X-Secret") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if isBlob(r) {
			http.Redirect(w, r, "http://"+away.Host+r.URL.Path+"?signature=x", http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, r)
	})
	away.Fault(cutter(300_000))
	auth := &Auth{Username: "me", Password: "secret"}
	with := func(c *Config) { c.HostsDir = dir }
	wantBlob(t, open(t, reg.Host, auth, with))
	seen := away.Requests()
	for _, q := range seen {
		if q.Header.Get("Authorization") != "" || q.Header.Get("X-Secret") != "" {
			t.Errorf("shown elsewhere: %v", q.Header)
		}
	}
	if len(seen) != 3 || seen[1].Header.Get("Range") == "" {
		t.Errorf("%d requests elsewhere", len(seen))
	}
	// A stranger who asks for credentials gets none.
	away.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("WWW-Authenticate", `Basic realm="give me"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	if _, err := readBlob(t, open(t, reg.Host, auth, with), layer(), 0); !errors.Is(err, ErrDenied) {
		t.Errorf("error is %v", err)
	}
	for _, q := range away.Requests() {
		if q.Header.Get("Authorization") != "" {
			t.Errorf("shown elsewhere: %v", q.Header)
		}
	}
}

func writeHosts(t testing.TB, dir, host, content string) {
	t.Helper()
	d := filepath.Join(dir, host)
	if err := os.MkdirAll(d, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d, "hosts.toml"), []byte(content), 0o644); err != nil { // not secret
		t.Fatal(err)
	}
}

func TestMirrors(t *testing.T) {
	good, empty := pushed(t), imagetest.NewRegistry(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.TrimPrefix(r.URL.Path, "/odd/root")
		if !strings.HasPrefix(r.URL.Path, "/v2/") {
			r.URL.Path = "/v2" + r.URL.Path
		}
		resp, err := http.Get("http://" + good.Host + r.URL.Path)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		_, _ = io.Copy(w, resp.Body)
	}))
	defer secure.Close()
	defer http.DefaultClient.CloseIdleConnections()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir, hosts string
		want       string // error; "" = works
	}{
		"mirror": {"registry.test", `[host."http://` + good.Host + `"]`, ""},
		"mirror without it, then one with it": {"registry.test", `[host."http://` + empty.Host + `"]
[host."http://` + good.Host + `"]`, ""},
		"mirror that is down": {"registry.test", `[host."http://127.0.0.1:1"]
[host."http://` + good.Host + `"]`, ""},
		"server":  {"registry.test", `server = "http://` + good.Host + `"`, ""},
		"default": {"_default", `server = "http://` + good.Host + `"`, ""},
		"may not resolve": {
			"registry.test", "server = 'http://127.0.0.1:1'\n[host.\"http://" + good.Host +
				"\"]\ncapabilities = ['pull']", "connection refused",
		},
		"unknown authority": {
			"registry.test", `server = "` + secure.URL + `"`, "certificate signed by unknown authority",
		},
		"skip_verify": {"registry.test", "server = '" + secure.URL + "'\nskip_verify = true", ""},
		"ca":          {"registry.test", "server = '" + secure.URL + "'\nca = '" + ca + "'", ""},
		"override_path": {
			"registry.test", "server = '" + secure.URL + "/odd/root'\nskip_verify = true\noverride_path = true", "",
		},
		"broken":                {"registry.test", "server = ", "hosts.toml"},
		"wrong type":            {"registry.test", "[host.'http://x']\ncapabilities = 'pull'", "hosts.toml"},
		"unknown capability":    {"registry.test", "[host.'http://x']\ncapabilities = ['fly']", "unknown capability"},
		"missing ca":            {"registry.test", "server = '" + secure.URL + "'\nca = '/absent'", "/absent"},
		"port in the directory": {"registry.test_5000_", `server = "http://` + good.Host + `"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeHosts(t, dir, c.dir, c.hosts)
			domain := "registry.test"
			if strings.Contains(c.dir, "_5000_") {
				domain += ":5000"
			}
			ref, err := reference.ParseNormalizedNamed(domain + "/dir/big")
			if err != nil {
				t.Fatal(err)
			}
			good.Requests()
			r, err := New(Config{HostsDir: dir, Backoff: 1, Attempts: 2}).Repository(t.Context(), ref, nil)
			if err == nil {
				defer r.Close()
				if _, err = r.Tag(t.Context(), "v1"); err == nil {
					wantBlob(t, r)
				}
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
			for _, q := range good.Requests() {
				if ns := q.URL.Query().Get("ns"); ns != domain && q.Host == good.Host &&
					!strings.Contains(c.hosts, secure.URL) {
					t.Errorf("mirror was asked for namespace %q", ns)
				}
			}
		})
	}
}

// TestClientCertificates: a registry that knows its clients by certificates and by a header of their own.
func TestClientCertificates(t *testing.T) {
	good := pushed(t)
	backend, err := url.Parse("http://" + good.Host)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := selfSigned(t)
	pool := x509.NewCertPool()
	if b, err := os.ReadFile(cert); err != nil || !pool.AppendCertsFromPEM(b) {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(backend) }}
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Who") != "node" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	const header = "[host.'%[1]s'.header]\nX-Who = ['node']\n"
	for name, c := range map[string]struct{ hosts, want string }{
		"pair":           {"[host.'%[1]s']\nskip_verify = true\nclient = [['%[2]s', '%[3]s']]\n" + header, ""},
		"one file":       {"[host.'%[1]s']\nskip_verify = true\nclient = '%[4]s'\n" + header, ""},
		"no certificate": {"[host.'%[1]s']\nskip_verify = true\n" + header, "certificate required"},
		"no header":      {"[host.'%[1]s']\nskip_verify = true\nclient = [['%[2]s', '%[3]s']]\n", "403 Forbidden"},
		"no such file":   {"[host.'%[1]s']\nclient = '/absent'\n", "/absent"},
		"relative path":  {"[host.'%[1]s']\nskip_verify = true\nclient = [['cert.pem', 'key.pem']]\n" + header, ""},
		"header of another": {
			"[host.'%[1]s']\nskip_verify = true\nclient = [['%[2]s', " +
				"'%[3]s']]\n[host.'http://127.0.0.1:1'.header]\nX-Who = ['node']\n", "403 Forbidden",
		},
	} {
		dir := t.TempDir()
		together := filepath.Join(t.TempDir(), "both.pem")
		var all []byte
		for _, file := range []string{cert, key} {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		text := fmt.Sprintf("server = 'http://127.0.0.1:1'\n"+c.hosts+"%.0[2]s%.0[3]s%.0[4]s", s.URL, cert, key,
			together)
		writeHosts(t, dir, "registry.test", text)
		if err := errors.Join(os.WriteFile(together, all, 0o600),
			copyFile(cert, filepath.Join(dir, "registry.test", "cert.pem")),
			copyFile(key, filepath.Join(dir, "registry.test", "key.pem"))); err != nil {
			t.Fatal(err)
		}
		ref, err := reference.ParseNormalizedNamed("registry.test/dir/big")
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{HostsDir: dir, Backoff: 1, Attempts: 1}).Repository(t.Context(), ref, nil)
		if err == nil {
			if _, err = r.Tag(t.Context(), "v1"); err == nil {
				wantBlob(t, r)
			}
			r.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// selfSigned makes a certificate that vouches for itself, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: mathbig.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	err = errors.Join(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func TestAuthFor(t *testing.T) {
	for _, c := range []struct {
		server, host string
		want         bool
	}{
		{"", "mirror.test", true},
		{"https://index.docker.io/v1/", "registry-1.docker.io", true},
		{"docker.io", "registry-1.docker.io", true},
		{"docker.io", "mirror.test", false},
		{"example.org", "example.org", true},
		{"https://EXAMPLE.org/v2/", "example.org", true},
		{"https://example.org:443", "example.org", true},
		{"mirror.test", "mirror.test", true},
		{"example.org", "mirror.test", false},
		{"example.org:5000", "example.org", false},
		{"other.org", "example.org", false},
	} {
		if got := (&Auth{ServerAddress: c.server}).For(c.host); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

func FuzzHosts(f *testing.F) {
	f.Add([]byte("server = 'http://127.0.0.1:1'\n[host.'http://127.0.0.1:1']\ncapabilities = ['pull']\nskip_verify = " +
		"true\nca = ['a', 'b']\n[host.'http://127.0.0.1:1'.header]\nx = ['y']"))
	f.Add([]byte("client = [['a','b']]\ndial_timeout = '1s'"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		writeHosts(t, dir, "registry.test", string(content))
		ref, err := reference.ParseNormalizedNamed("registry.test/x")
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{HostsDir: dir}).Repository(t.Context(), ref, nil)
		if err == nil {
			r.Close()
		}
	})
}
