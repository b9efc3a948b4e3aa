package cluster

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/keyutil"
)

const (
	token  = "abcdef.0123456789abcdef"
	within = time.Minute
)

// authority signs certificates of tests.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-100 * time.Hour), NotAfter: time.Now().Add(10000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) pem() []byte { return encode("CERTIFICATE", a.cert.Raw) }

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// sign signs a certificate of a template, which has a life.
func (a *authority) sign(template x509.Certificate, public crypto.PublicKey) []byte {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, public, a.key)
	if err != nil {
		return nil
	}
	return encode("CERTIFICATE", der)
}

// client is a template of a node's certificate.
func client(node string, from, to time.Time) x509.Certificate {
	return x509.Certificate{
		Subject: pkix.Name{CommonName: nodeUser + node, Organization: []string{nodeGroup}}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// pair is a certificate with its key, in one piece.
func (a *authority) pair(t *testing.T, template x509.Certificate) []byte {
	t.Helper()
	key := newKey(t)
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(a.sign(template, key.Public()), data...)
}

// apiServer is as much of an API server as has certificates.
type apiServer struct {
	t       *testing.T
	ca      *authority // of clients
	srv     *httptest.Server
	address string

	mu       sync.Mutex
	trusts   *x509.CertPool
	csrs     map[string]*certificatesv1.CertificateSigningRequest
	order    []string
	version  int
	change   chan struct{} // closed at each
	decide   func(*certificatesv1.CertificateSigningRequest)
	refuse   bool // all certificate requests are
	huge     bool
	watchers int
	serials  map[string]int // of certificates that calls came with
	tokens   map[string]bool
	slow     chan struct{} // answers wait for it
	began    chan struct{} // hears of one that does
}

func newAPIServer(t *testing.T) *apiServer { return newAPIServerAt(t, newAuthority(t), "127.0.0.1:0") }

func newAPIServerAt(t *testing.T, ca *authority, address string) *apiServer {
	t.Helper()
	s := &apiServer{
		t: t, ca: ca, csrs: map[string]*certificatesv1.CertificateSigningRequest{}, change: make(chan struct{}),
		serials: map[string]int{}, trusts: x509.NewCertPool(), tokens: map[string]bool{token: true},
		began: make(chan struct{}, 1),
	}
	s.decide = s.approve
	s.trusts.AddCert(ca.cert)
	s.listen(address)
	t.Cleanup(func() { s.srv.CloseClientConnections(); s.srv.Close() })
	return s
}

func (s *apiServer) listen(address string) {
	s.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	template := x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	data := s.ca.pair(s.t, template)
	serving, err := tls.X509KeyPair(data, data)
	if err != nil {
		s.t.Fatal(err)
	}
	s.srv = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.srv.Listener.Close()
	s.srv.Listener = l
	s.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.srv.EnableHTTP2 = true
	s.srv.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}
	s.srv.StartTLS()
	s.address = s.srv.Listener.Addr().String()
}

// user is who asks; "": nobody who is known.
func (s *apiServer) user(r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && s.tokens[bearer] {
		return "token"
	}
	if len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	c := r.TLS.PeerCertificates[0]
	_, err := c.Verify(x509.VerifyOptions{Roots: s.trusts, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return ""
	}
	s.serials[c.SerialNumber.String()]++
	return c.Subject.CommonName
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	user := s.user(r)
	path, isCSR := strings.CutPrefix(r.URL.Path, "/apis/certificates.k8s.io/v1/certificatesigningrequests")
	name := strings.TrimPrefix(path, "/")
	switch {
	case user == "":
		status(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case s.huge:
		w.Header().Set("Content-Type", "application/json")
		for range 100 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
				return
			}
		}
	case isCSR && r.URL.Query().Get("watch") == "true":
		s.watch(w, r)
	case isCSR && r.Method == http.MethodPost:
		s.create(w, r, user)
	case isCSR:
		s.mu.Lock()
		csr := s.csrs[name].DeepCopy()
		s.mu.Unlock()
		if csr == nil {
			status(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answer(w, http.StatusOK, csr)
	case r.URL.Query().Get("watch") == "true":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default: // who asks
		s.mu.Lock()
		slow := s.slow
		s.mu.Unlock()
		if slow != nil {
			s.began <- struct{}{}
			<-slow
		}
		answer(w, http.StatusOK, &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{
				Name: filepath.Base(r.URL.Path), UID: "u-n1", Annotations: map[string]string{"user": user, "path": r.URL.Path, "agent": r.UserAgent()},
			},
		})
	}
}

func status(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	answer(w, code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: reason, Code: int32(code),
	})
}

func answer(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func (s *apiServer) create(w http.ResponseWriter, r *http.Request, user string) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := json.NewDecoder(r.Body).Decode(csr); err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	if s.csrs[csr.Name] != nil {
		status(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	csr.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	csr.UID, csr.Spec.Username = types.UID(csr.Name), user
	s.order = append(s.order, csr.Name)
	s.put(csr)
	answer(w, http.StatusCreated, csr)
	if s.decide != nil {
		decided := csr.DeepCopy()
		s.decide(decided)
		s.put(decided)
	}
}

// put keeps a version; s.mu is held.
func (s *apiServer) put(csr *certificatesv1.CertificateSigningRequest) {
	s.version++
	csr.ResourceVersion = fmt.Sprint(s.version)
	s.csrs[csr.Name] = csr.DeepCopy()
	close(s.change)
	s.change = make(chan struct{})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(r.URL.Query().Get("fieldSelector"), "=")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for at := r.URL.Query().Get("resourceVersion"); ; {
		s.mu.Lock()
		s.watchers++
		csr, change := s.csrs[name].DeepCopy(), s.change
		s.mu.Unlock()
		if csr != nil && csr.ResourceVersion != at {
			at = csr.ResourceVersion
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": csr})
			w.(http.Flusher).Flush()
		}
		select {
		case <-r.Context().Done():
			return
		case <-change:
		}
	}
}

// requested is what a request asks for.
func requested(csr *certificatesv1.CertificateSigningRequest) *x509.CertificateRequest {
	block, _ := pem.Decode(csr.Spec.Request)
	out, _ := x509.ParseCertificateRequest(block.Bytes)
	return out
}

// granted is the template that a signer makes of a request.
func granted(csr *certificatesv1.CertificateSigningRequest) x509.Certificate {
	r := requested(csr)
	c := x509.Certificate{
		Subject: r.Subject, DNSNames: r.DNSNames, IPAddresses: r.IPAddresses, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-5 * time.Minute), NotAfter: time.Now().Add(time.Hour * 24 * 365),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	return c
}

func condition(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: "Test", Message: "as the test wants it",
	})
}

func (s *apiServer) approve(csr *certificatesv1.CertificateSigningRequest) {
	condition(csr, certificatesv1.CertificateApproved)
	csr.Status.Certificate = s.ca.sign(granted(csr), requested(csr).PublicKey)
}

// answers has the server decide like this from now on.
func (s *apiServer) answers(decide func(*certificatesv1.CertificateSigningRequest)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide = decide
}

// later decides about the requests that wait.
func (s *apiServer) later(decide func(*certificatesv1.CertificateSigningRequest)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.order {
		csr := s.csrs[name].DeepCopy()
		if len(csr.Status.Conditions) == 0 {
			decide(csr)
			s.put(csr)
		}
	}
}

func (s *apiServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.order...)
}

// kubeconfig is one for a user.
func (s *apiServer) kubeconfig(user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://%s", certificate-authority-data: %s}
users:
- name: u
  user: {%s}
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`, s.address, base64Of(s.ca.pem()), user)
}

func (s *apiServer) withPair(pair []byte) string {
	return s.kubeconfig(fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", base64Of(pair), base64Of(pair)))
}

func base64Of(data []byte) string {
	out, _ := json.Marshal(data)
	return string(out)
}

// node is a node of a test.
type node struct {
	t       *testing.T
	dir     string
	cfg     Config
	now     func() time.Time
	lines   *lines
	long    time.Duration // between attempts; 0: a moment
	stopped func()
	*Client
}

type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, dir: dir, now: time.Now, lines: &lines{}, cfg: Config{
		Kubeconfig: filepath.Join(dir, "etc", "kubelet.conf"), CertDir: filepath.Join(dir, "pki"), NodeName: "n1", Rotate: true,
		ContentType: "application/json", QPS: -1, Version: "v1.2.3",
	}}
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.cfg.Log = slog.New(slog.NewTextHandler(n.lines, nil))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", n.lines.text.String())
		}
	})
	return n
}

func (n *node) bootstrap(s *apiServer) {
	n.cfg.BootstrapKubeconfig = filepath.Join(n.dir, "etc", "bootstrap.conf")
	n.write(n.cfg.BootstrapKubeconfig, s.kubeconfig("token: "+token))
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// replace puts a file in place as a whole: one that is written over is empty for a moment, which can be as long as what
// is waited for between its pieces.
func (n *node) replace(path, text string) {
	n.t.Helper()
	n.write(path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		n.t.Fatal(err)
	}
}

// start opens and runs the client.
func (n *node) start() {
	n.t.Helper()
	p := pauses{first: 10 * time.Millisecond, most: 50 * time.Millisecond, denied: 50 * time.Millisecond, refused: 10 * time.Millisecond}
	if n.long != 0 {
		p.first, p.most = n.long, n.long
	}
	c, err := open(n.cfg, n.now, p)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Client = c
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	n.stopped = stop
	n.t.Cleanup(stop)
}

// who is the user that the server takes the node for.
func (n *node) who() (string, error) {
	got := &corev1.Node{}
	ctx, cancel := context.WithTimeout(n.t.Context(), within)
	defer cancel()
	err := n.Get(ctx, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, types.NamespacedName{Name: "n1"}, got)
	return got.Annotations["user"], err
}

func (n *node) phase(want Phase) {
	n.t.Helper()
	until(n.t, string(want), func() error {
		if st := n.State(); st.Phase != want {
			return fmt.Errorf("it is %s: %s", st.Phase, st.Message)
		}
		return nil
	})
}

func until(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
