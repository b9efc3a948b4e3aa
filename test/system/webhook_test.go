package system

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"

	"github.com/berth-node/berth/agent/api/pki"
)

// reviewer is what of an API server a node asks for: it knows tokens, and who may do what.
type reviewer struct {
	*httptest.Server

	mu      sync.Mutex
	users   map[string]string // by token
	allowed map[string]bool   // "user verb subresource"
	tokens  int
	reviews []authorizationv1.SubjectAccessReviewSpec
	strange []string
}

// agentToken is what the node shows to the API server.
const agentToken = "node-secret"

func newReviewer(t *testing.T) *reviewer {
	r := &reviewer{users: map[string]string{}, allowed: map[string]bool{}}
	r.Server = httptest.NewTLSServer(r)
	t.Cleanup(r.Close)
	return r
}

func (s *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "reviews") {
		http.NotFound(w, r) // it is asked for pods and a Node, too, as of any node's, and has none
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+agentToken || r.Method != http.MethodPost {
		s.strange = append(s.strange, r.Method+" "+r.URL.Path)
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(r.Body)
	answer := any(nil)
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var in authenticationv1.TokenReview
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		s.tokens++
		if user, ok := s.users[in.Spec.Token]; ok {
			in.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: user, UID: "uid-" + user, Groups: []string{"staff"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}},
			}}
		}
		answer = in
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var in authorizationv1.SubjectAccessReview
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		s.reviews = append(s.reviews, in.Spec)
		if a := in.Spec.ResourceAttributes; a != nil {
			in.Status.Allowed = s.allowed[in.Spec.User+" "+a.Verb+" "+a.Subresource]
		}
		answer = in
	}
	if err != nil || answer == nil {
		s.strange = append(s.strange, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(answer)
}

// change changes what the server knows.
func (s *reviewer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// asked returns how many tokens and which rights were asked about since it was called last.
func (s *reviewer) asked() (int, []authorizationv1.SubjectAccessReviewSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, r := s.tokens, s.reviews
	s.tokens, s.reviews = 0, nil
	return n, r
}

// kubeconfig writes the file with which a node reaches the server.
func (s *reviewer) kubeconfig(t *testing.T, path string) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	b, err := json.Marshal(clientcmdapi.Config{
		Kind: "Config", APIVersion: "v1", CurrentContext: "node",
		Clusters: []clientcmdapi.NamedCluster{{
			Name:    "here",
			Cluster: clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: ca},
		}},
		AuthInfos: []clientcmdapi.NamedAuthInfo{{Name: "node", AuthInfo: clientcmdapi.AuthInfo{Token: agentToken}}},
		Contexts: []clientcmdapi.NamedContext{{
			Name:    "node",
			Context: clientcmdapi.Context{Cluster: "here", AuthInfo: "node"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(b))
}

// clientOf has a certificate of an authority whose certificate is then in ca.crt of dir.
func clientOf(t *testing.T, dir, user string, groups ...string) (cert, key string) {
	t.Helper()
	authority, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, private)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := authority.SignClient(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
		time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, user+".crt"), filepath.Join(dir, user+".key")
	write(t, cert, string(signed))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	return cert, key
}

// reviewed is a node whose API asks a reviewer.
type reviewed struct {
	*Node
	server *reviewer
	file   string
	port   int
	config *rest.Config // reaches the node without any credentials
	ca     string       // directory of the authority of client certificates
}

func startReviewed(t *testing.T) *reviewed {
	h := &reviewed{Node: newNode(t), server: newReviewer(t), port: freePort(t), ca: t.TempDir()}
	h.file = filepath.Join(h.Dir, "config.yaml")
	h.server.kubeconfig(t, filepath.Join(h.Dir, "kubeconfig"))
	h.args = append(h.args, "--config="+h.file, "--network=builtin", "--kube-api-content-type=application/json",
		"--kubeconfig="+filepath.Join(h.Dir, "kubeconfig"))
	h.config = &rest.Config{
		Host:            fmt.Sprintf("https://localhost:%d", h.port),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(h.Dir, "root", "pki", "ca.crt")},
	}
	return h
}

// settings are the node's from its next start on, as a kubelet's file has them.
func (h *reviewed) settings(rest string) {
	h.t.Helper()
	write(h.t, h.file, fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: "+
		"127.0.0.1\nport: %d\nhealthzPort: 0\n%s\n", h.port, rest))
}

// code asks with a token.
func (h *reviewed) code(token, method, path string) (int, string) {
	h.t.Helper()
	c := rest.CopyConfig(h.config)
	c.BearerToken = token
	return ask(h.t, c, method, path)
}

func (h *reviewed) expect(code int, says, token, method, path string) {
	h.t.Helper()
	if got, body := h.code(token, method, path); got != code || !strings.Contains(body, says) {
		h.t.Errorf("%s %s with %q: %d %.300q, want %d", method, path, token, got, body, code)
	}
}

// TestWebhook has an API server say who may use the node's API, by a kubelet's configuration file.
func TestWebhook(t *testing.T) {
	t.Parallel()
	h := startReviewed(t)
	cert, key := clientOf(t, h.ca, "kube-apiserver", "system:masters")
	authentication := func(anonymous bool, ttl string) string {
		return fmt.Sprintf("authentication: {anonymous: {enabled: %t}, webhook: {enabled: true, cacheTTL: %s}, x509: "+
			"{clientCAFile: %s/ca.crt}}\n", anonymous, ttl, h.ca)
	}
	h.settings(authentication(false, "1h") +
		"authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 1h, cacheUnauthorizedTTL: 1ms}}")
	h.start()
	h.apply("web.yaml", pod("web", sleeping))
	h.waitReady("web")
	s := h.server
	s.change(func() { s.users["good"], s.users["probe"] = "ann", "probe" })

	h.expect(401, "Unauthorized", "", "GET", "/pods")
	h.expect(401, "Unauthorized", "bad", "GET", "/pods")
	if n, reviews := s.asked(); n != 1 || len(reviews) != 0 {
		t.Errorf("asked about %d tokens and %v", n, reviews)
	}
	h.attributes()

	// A no is good for a moment, a yes and a token for an hour.
	h.expect(403, "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[pods proxy])", "good", "GET", "/pods")
	s.change(func() { s.allowed["ann get pods"], s.allowed["ann create proxy"] = true, true })
	h.eventually("a no to be forgotten", func() error {
		if code, body := h.code("good", "GET", "/pods"); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	h.expect(200, "hello\n", "good", "POST", "/run/default/web-node/main?cmd=echo+hello")
	s.change(func() { clear(s.users); clear(s.allowed) })
	s.asked()
	h.expect(200, `"name":"web-node"`, "good", "GET", "/pods")
	h.expect(200, "hello\n", "good", "POST", "/run/default/web-node/main?cmd=echo+hello")
	if n, reviews := s.asked(); n != 0 || len(reviews) != 0 {
		t.Errorf("asked again about %d tokens and %v", n, reviews)
	}
	h.webSocket("good")
	h.certificate(cert, key)

	// The next agent knows nothing of it, and is told to forget the other way round.
	s.change(func() { s.users["good"], s.allowed["ann get metrics"] = "ann", true })
	h.kill()
	h.settings(authentication(true, "1ms") +
		"authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 1ms, cacheUnauthorizedTTL: 1h}}")
	h.start()
	h.expect(200, "node_cpu_usage_seconds_total", "good", "GET", "/metrics/resource")
	h.expect(403, "Forbidden", "good", "GET", "/stats/summary")
	s.change(func() { clear(s.allowed); s.allowed["ann get stats"] = true })
	h.eventually("a yes to be forgotten", func() error {
		if code, body := h.code("good", "GET", "/metrics/resource"); code != 403 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	h.expect(403, "Forbidden", "good", "GET", "/stats/summary")
	s.change(func() { clear(s.users) })
	h.eventually("a token to be forgotten", func() error {
		if code, body := h.code("good", "GET", "/stats/summary"); code != 401 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	s.change(func() { s.allowed["system:anonymous get healthz"] = true })
	s.asked()
	h.expect(200, "ok", "", "GET", "/healthz")
	h.expect(403, "Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[log])", "", "GET", "/logs/")
	if n, reviews := s.asked(); n != 0 || len(reviews) != 2 ||
		!slices.Equal(reviews[0].Groups, []string{"system:unauthenticated"}) {
		t.Errorf("asked about %d tokens and %v", n, reviews)
	}

	// Without the API server nobody is known, and of who is known it cannot be told what they may do.
	s.CloseClientConnections()
	s.Close()
	h.expect(401, "Unauthorized", "good", "GET", "/pods")
	h.expect(500, "Authorization error (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[metrics])", "",
		"GET", "/metrics")
	h.expect(403, "Forbidden", "", "GET", "/logs/")
	if len(s.strange) > 0 {
		t.Errorf("the API server did not understand %v", s.strange)
	}
}

// attributes looks at what an API server is asked for each kind of path.
func (h *reviewed) attributes() {
	h.t.Helper()
	for _, c := range []struct{ method, path, verb, sub string }{
		{"GET", "/pods", "get", "pods proxy"},
		{"GET", "/runningpods/", "get", "pods proxy"},
		{"GET", "/healthz", "get", "healthz proxy"},
		{"GET", "/healthz/ping", "get", "healthz proxy"},
		{"GET", "/configz", "get", "configz proxy"},
		{"GET", "/stats/summary", "get", "stats"},
		{"POST", "/stats/summary", "create", "stats"},
		{"GET", "/metrics", "get", "metrics"},
		{"GET", "/metrics/cadvisor", "get", "metrics"},
		{"GET", "/logs/syslog", "get", "log"},
		{"POST", "/checkpoint/default/web-node/main", "create", "checkpoint"},
		{"GET", "/containerLogs/default/web-node/main", "get", "proxy"},
		{"POST", "/run/default/web-node/main", "create", "proxy"},
		{"POST", "/exec/default/web-node/main", "create", "proxy"},
		{"GET", "/exec/default/web-node/main", "create", "proxy"},
		{"GET", "/attach/default/web-node/main", "create", "proxy"},
		{"GET", "/portForward/default/web-node", "create", "proxy"},
		{"PUT", "/nothing", "update", "proxy"},
		{"DELETE", "/pods/default/web-node", "delete", "pods proxy"},
		{"PATCH", "/pods/default/web-node/status", "patch", "pods proxy"},
		{"GET", "/debug/pprof/heap", "get", "proxy"},
		{"GET", "/metrics/%2e%2e/exec/default/web-node/main", "get", "proxy"},
	} {
		h.eventually("a no to be forgotten", func() error {
			h.server.asked()
			code, body := h.code("probe", c.method, c.path)
			if code != 403 {
				h.t.Fatalf("%s %s: %d %s", c.method, c.path, code, body)
			}
			_, reviews := h.server.asked()
			var subs []string
			for _, r := range reviews {
				a := r.ResourceAttributes
				if a == nil || r.NonResourceAttributes != nil || a.Verb != c.verb {
					h.t.Fatalf("%s %s: asked for %+v", c.method, c.path, r)
				}
				subs = append(subs, a.Subresource)
				if want := (authorizationv1.ResourceAttributes{
					Verb: c.verb, Version: "v1", Resource: "nodes",
					Subresource: a.Subresource, Name: "node",
				}); *a != want {
					h.t.Fatalf("%s %s: asked for %+v", c.method, c.path, *a)
				}
				if r.User != "probe" || r.UID != "uid-probe" ||
					!slices.Equal(r.Groups, []string{"staff", "system:authenticated"}) ||
					!slices.Equal(r.Extra["scopes"], []string{"a", "b"}) {
					h.t.Fatalf("%s %s: asked for the user %+v", c.method, c.path, r)
				}
			}
			if got := strings.Join(subs, " "); got != c.sub {
				return fmt.Errorf("%s %s: asked for %q, want %q", c.method, c.path, got, c.sub)
			}
			return nil
		})
	}
}

// webSocket runs a command over a WebSocket that shows the token as browsers can.
func (h *reviewed) webSocket(token string) {
	h.t.Helper()
	ca, err := os.ReadFile(h.config.CAFile)
	if err != nil {
		h.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	shown := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
	d := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: pool}, Subprotocols: []string{shown, "v4.channel.k8s.io"}}
	url := strings.Replace(h.config.Host, "https", "wss", 1) +
		"/exec/default/web-node/main?command=echo&command=through&output=1&error=1"
	conn, resp, err := d.DialContext(h.t.Context(), url, nil)
	if err != nil {
		h.t.Fatalf("%v, %v", err, resp)
	}
	defer resp.Body.Close()
	defer conn.Close()
	var out bytes.Buffer
	for {
		_, msg, err := conn.ReadMessage()
		if err != nil {
			break
		}
		if len(msg) > 0 && msg[0] == 1 {
			out.Write(msg[1:])
		}
	}
	if conn.Subprotocol() != "v4.channel.k8s.io" || out.String() != "through\n" {
		h.t.Errorf("by %q came %q", conn.Subprotocol(), out.String())
	}
	d.Subprotocols[0] = "base64url.bearer.authorization.k8s.io.bm9ib2R5"
	if _, resp, err := d.DialContext(h.t.Context(), url, nil); err == nil || resp.StatusCode != http.StatusUnauthorized {
		h.t.Errorf("with a token that nobody knows: %v", err)
	}
}

// certificate asks with a client certificate, of which the API server is told what it would have found out itself.
func (h *reviewed) certificate(cert, key string) {
	h.t.Helper()
	c := rest.CopyConfig(h.config)
	c.CertFile, c.KeyFile = cert, key
	h.server.asked()
	if code, body := ask(h.t, c, "GET", "/pods"); code != 403 {
		h.t.Errorf("the certificate alone was enough: %d %s", code, body)
	}
	h.server.change(func() { h.server.allowed["kube-apiserver get proxy"] = true })
	h.eventually("a no to be forgotten", func() error {
		if code, body := ask(h.t, c, "GET", "/pods"); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	n, reviews := h.server.asked()
	if n != 0 || len(reviews) < 2 {
		h.t.Fatalf("asked about %d tokens and %v", n, reviews)
	}
	r := reviews[0]
	if r.User != "kube-apiserver" || !slices.Equal(r.Groups, []string{"system:masters", "system:authenticated"}) ||
		!strings.HasPrefix(strings.Join(r.Extra["authentication.kubernetes.io/credential-id"], " "), "X509SHA256=") {
		h.t.Errorf("asked for %+v", r)
	}
	c.CertFile, c.KeyFile = clientOf(h.t, h.t.TempDir(), "kube-apiserver", "system:masters")
	if code, body := ask(h.t, c, "GET", "/pods"); code != 401 {
		h.t.Errorf("a certificate of somebody else's authority: %d %s", code, body)
	}
	var status metav1.Status
	if code, body := h.code("nobody", "GET", "/pods"); code != 401 || json.Unmarshal([]byte(body), &status) != nil ||
		status.Reason != metav1.StatusReasonUnauthorized {
		h.t.Errorf("%d %s", code, body)
	}
}
