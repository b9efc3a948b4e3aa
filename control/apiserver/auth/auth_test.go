package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const issuer = "https://kubernetes.default.svc"

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}
}

// start makes everything over a server that has some objects, and waits until the informers know them.
func start(t *testing.T, o Options, objects ...runtime.Object) (*Auth, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	if o.ServiceAccountKey == nil {
		o.ServiceAccountKey = newKey(t)
	}
	o.ServiceAccountIssuer = issuer
	a, err := New(t.Context(), o, factory, client)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return a, client
}

func requestOf(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// TestServiceAccountTokens attacks tokens in all ways: who may come in, and as whom.
func TestServiceAccountTokens(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}
	pod, secret, node := &corev1.Pod{ObjectMeta: meta("ns", "pod")}, &corev1.Secret{ObjectMeta: meta("ns", "secret")}, &corev1.Node{ObjectMeta: meta("", "node")}
	dying := &corev1.Pod{ObjectMeta: meta("ns", "dying")}
	long := metav1.NewTime(time.Now().Add(-time.Hour))
	dying.DeletionTimestamp, dying.Finalizers = &long, []string{"example.org/wait"}
	key := newKey(t)
	a, client := start(t, Options{ServiceAccountKey: key}, account, pod, secret, node, dying)
	claims := func(change func(*TokenClaims)) TokenClaims {
		c, err := Claims(account, Bindings{Pod: pod, Node: node}, []string{issuer}, 3600, 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	sign := func(c TokenClaims) string {
		token, err := a.Tokens().Generate(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	other, err := newSigner(issuer, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := other.Generate(t.Context(), claims(nil))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := newSigner("https://elsewhere.example.org", key)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := foreign.Generate(t.Context(), claims(nil))
	if err != nil {
		t.Fatal(err)
	}
	good := sign(claims(nil))
	parts := strings.Split(good, ".")
	for name, c := range map[string]struct {
		token string
		good  bool
	}{
		"good":                {good, true},
		"bound to a secret":   {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod, c.Kubernetes.Secret = nil, bound(secret) })), true},
		"bound to a node":     {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod = nil })), true},
		"no algorithm":        {none(t, claims(nil)), false},
		"public key as HMAC":  {hmac(t, key.Public(), claims(nil)), false},
		"another key":         {forged, false},
		"another issuer":      {elsewhere, false},
		"changed claims":      {parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`"}`)) + "." + parts[2], false},
		"without signature":   {parts[0] + "." + parts[1] + ".", false},
		"another audience":    {sign(claims(func(c *TokenClaims) { c.Audience = jwt.Audience{"vault"} })), false},
		"no audience":         {sign(claims(func(c *TokenClaims) { c.Audience = nil })), false},
		"expired":             {sign(claims(func(c *TokenClaims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) })), false},
		"without end":         {sign(claims(func(c *TokenClaims) { c.Expiry = nil })), false},
		"not yet":             {sign(claims(func(c *TokenClaims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour)) })), false},
		"another subject":     {sign(claims(func(c *TokenClaims) { c.Subject = "system:admin" })), false},
		"no account":          {sign(claims(func(c *TokenClaims) { c.Kubernetes = TokenBinding{} })), false},
		"account gone":        {sign(claims(func(c *TokenClaims) { c.Kubernetes.ServiceAccount.Name = "gone" })), false},
		"account made again":  {sign(claims(func(c *TokenClaims) { c.Kubernetes.ServiceAccount.UID = "old" })), false},
		"pod gone":            {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod = &BoundObject{"gone", "x"} })), false},
		"pod made again":      {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod.UID = "old" })), false},
		"pod without UID":     {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod.UID = "" })), false},
		"pod long deleted":    {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod = bound(dying) })), false},
		"secret gone":         {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod, c.Kubernetes.Secret = nil, &BoundObject{"gone", "x"} })), false},
		"node made again":     {sign(claims(func(c *TokenClaims) { c.Kubernetes.Pod, c.Kubernetes.Node.UID = nil, "old" })), false},
		"garbage":             {"a.b.c", false},
		"nothing":             {"", false},
		"longer than allowed": {"a.b." + strings.Repeat("c", longestToken), false},
	} {
		for range 2 { // the second time it is known
			got, ok, err := a.Authenticator().AuthenticateRequest(requestOf(c.token))
			if ok != c.good {
				t.Errorf("%s: let in: %v, want %v (%v)", name, ok, c.good, err)
			}
			if ok && (got.User.GetName() != "system:serviceaccount:ns:robot" || !slices.Contains(got.User.GetGroups(), "system:serviceaccounts:ns") ||
				!slices.Contains(got.User.GetGroups(), "system:authenticated")) {
				t.Errorf("%s: let in as %+v", name, got.User)
			}
		}
	}
	got, _, err := a.Authenticator().AuthenticateRequest(requestOf(good))
	if err != nil || got.User.GetExtra()["authentication.kubernetes.io/pod-name"][0] != "pod" || got.User.GetExtra()["authentication.kubernetes.io/node-name"][0] != "node" {
		t.Errorf("of the pod is known %v, %v", got, err)
	}

	// A TokenReview for another audience takes the token that is for it.
	vault := sign(claims(func(c *TokenClaims) { c.Audience = jwt.Audience{"vault", "more"} }))
	asked := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"})
	if got, ok, err := a.Authenticator().AuthenticateRequest(requestOf(vault).WithContext(asked)); !ok || !slices.Equal(got.Audiences, []string{"vault"}) {
		t.Errorf("for its audience a token is not taken: %v, %v", got, err)
	}

	// Once the pod is deleted its token is worth nothing, before the informers know, too.
	if err := client.CoreV1().Pods("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	informed := &tokenAuthenticator{issuer, a.keys, newSignedTokens(), a.uses, a.audiences, &clusterObjects{informers.NewSharedInformerFactory(client, 0), client}, time.Now}
	if _, ok, _ := informed.AuthenticateToken(t.Context(), good); ok {
		t.Error("a token is good without its pod")
	}
}

func none(t *testing.T, c TokenClaims) string {
	t.Helper()
	c.Issuer = issuer
	body, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(body) + "."
}

func hmac(t *testing.T, public crypto.PublicKey, c TokenClaims) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Issuer = issuer
	token, err := jwt.Signed(s).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestKeys verifies what another server has signed with the key before, and tells others how to.
func TestKeys(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}
	old, err := rsa.GenerateKey(rand.Reader, leastRSA)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := start(t, Options{ServiceAccountPublicKeys: []any{old.Public()}}, account)
	before, err := newSigner(issuer, old)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := Claims(account, Bindings{}, []string{issuer}, 600, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := before.Generate(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token)); !ok {
		t.Errorf("a token of the key before is refused: %v", err)
	}
	body, err := a.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil || len(set.Keys) != 2 || !set.Keys[0].IsPublic() || !set.Keys[1].IsPublic() {
		t.Fatalf("keys are %s, %v", body, err)
	}
	id, err := keyID(old.Public())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	var out TokenClaims
	if err := parsed.Claims(set.Key(id)[0].Key, &out); err != nil || out.Subject != "system:serviceaccount:ns:robot" {
		t.Errorf("by the published key: %+v, %v", out, err)
	}
	if m, err := a.OpenIDMetadata("example.org:6443"); err != nil || !strings.Contains(string(m), `"jwks_uri":"https://example.org:6443/openid/v1/jwks"`) ||
		!strings.Contains(string(m), `["ES256","RS256"]`) {
		t.Errorf("metadata is %s, %v", m, err)
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newKeys([]any{small.Public()}); err == nil {
		t.Error("a key by P-224 is taken")
	}
	if _, err := Claims(account, Bindings{Pod: &corev1.Pod{}, Secret: &corev1.Secret{}}, nil, 1, 0, time.Now()); err == nil {
		t.Error("a token is bound to a pod and a secret")
	}
}

func TestBootstrapTokens(t *testing.T) {
	secret := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: meta("kube-system", "bootstrap-token-abcdef"), Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups": []byte("system:bootstrappers:berth:default-node-token"),
		}}
		if change != nil {
			change(s)
		}
		return s
	}
	const token = "abcdef.0123456789abcdef"
	for name, c := range map[string]struct {
		token  string
		change func(*corev1.Secret)
		good   bool
	}{
		"good":            {token, nil, true},
		"not expired":     {token, func(s *corev1.Secret) { s.Data["expiration"] = []byte(time.Now().Add(time.Hour).Format(time.RFC3339)) }, true},
		"expired":         {token, func(s *corev1.Secret) { s.Data["expiration"] = []byte(time.Now().Add(-time.Hour).Format(time.RFC3339)) }, false},
		"unreadable end":  {token, func(s *corev1.Secret) { s.Data["expiration"] = []byte("never") }, false},
		"another secret":  {"abcdef.0123456789abcdee", nil, false},
		"another ID":      {"abcdee.0123456789abcdef", nil, false},
		"no secret":       {"abcdef.", nil, false},
		"upper case":      {"ABCDEF.0123456789abcdef", nil, false},
		"a path":          {"../../.0123456789abcdef", nil, false},
		"another type":    {token, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		"another use":     {token, func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, false},
		"ID says another": {token, func(s *corev1.Secret) { s.Data["token-id"] = []byte("fedcba") }, false},
		"system:masters":  {token, func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }, false},
		"a group's line":  {token, func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:bootstrappers:a\nsystem:masters") }, false},
		"other namespace": {token, func(s *corev1.Secret) { s.Namespace = "default" }, false},
	} {
		a, _ := start(t, Options{}, secret(c.change))
		got, ok, err := a.Authenticator().AuthenticateRequest(requestOf(c.token))
		if ok != c.good {
			t.Errorf("%s: let in: %v, want %v, %v", name, ok, c.good, err)
		}
		if ok && (got.User.GetName() != "system:bootstrap:abcdef" || !slices.Contains(got.User.GetGroups(), "system:bootstrappers") ||
			!slices.Contains(got.User.GetGroups(), "system:bootstrappers:berth:default-node-token")) {
			t.Errorf("%s: let in as %+v", name, got.User)
		}
	}
}

// authority is a CA that signs certificates of clients.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) client(t testing.TB, subject pkix.Name, end time.Time) *x509.Certificate {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestRequests tells whose requests are, of certificates, front proxies and nobody.
func TestRequests(t *testing.T) {
	clients, proxies := newAuthority(t), newAuthority(t)
	ca := func(a *authority) dynamiccertificates.CAContentProvider {
		content, err := dynamiccertificates.NewStaticCAContent("test", a.pem)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	a, _ := start(t, Options{
		ClientCA: ca(clients), RequestHeaderCA: ca(proxies), RequestHeaderNames: []string{"front-proxy"}, AnonymousPaths: []string{"/readyz"},
	})
	end := time.Now().Add(time.Hour)
	admin := clients.client(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, end)
	impostor := newAuthority(t).client(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, end)
	late := clients.client(t, pkix.Name{CommonName: "admin"}, time.Now().Add(-time.Hour))
	proxy := proxies.client(t, pkix.Name{CommonName: "front-proxy"}, end)
	for name, c := range map[string]struct {
		path string
		cert *x509.Certificate
		as   string
		want string
	}{
		"certificate":                   {"/api", admin, "", "admin"},
		"certificate of another CA":     {"/api", impostor, "", ""},
		"certificate of another CA, ok": {"/readyz", impostor, "", ""},
		"expired certificate":           {"/api", late, "", ""},
		"front proxy":                   {"/api", proxy, "alice", "alice"},
		"a user as front proxy":         {"/api", admin, "alice", "admin"},
		"proxy's CA, other name":        {"/api", proxies.client(t, pkix.Name{CommonName: "x"}, end), "alice", ""},
		"nobody as front proxy":         {"/api", nil, "alice", ""},
		"nobody for health":             {"/readyz", nil, "", "system:anonymous"},
		"nobody":                        {"/api", nil, "", ""},
		"nobody below health":           {"/readyz/../api", nil, "", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		if c.cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		}
		if c.as != "" {
			r.Header.Set("X-Remote-User", c.as)
		}
		got, ok, err := a.Authenticator().AuthenticateRequest(r)
		who := ""
		if ok {
			who = got.User.GetName()
		}
		if who != c.want {
			t.Errorf("%s: is %q, want %q (%v)", name, who, c.want, err)
		}
	}
}

// TestTokenWebhook asks a service about a token that nobody knows.
func TestTokenWebhook(t *testing.T) {
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		known := review["spec"].(map[string]any)["token"] == "known"
		review["status"] = map[string]any{"authenticated": known, "user": map[string]any{"username": "wanda"}}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer service.Close()
	a, _ := start(t, Options{AuthenticationWebhook: kubeconfig(t, service)})
	for token, want := range map[string]bool{"known": true, "unknown": false} {
		got, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token))
		if ok != want || ok && got.User.GetName() != "wanda" {
			t.Errorf("%s: %v, %v, %v", token, got, ok, err)
		}
	}
}

func kubeconfig(t *testing.T, service *httptest.Server) string {
	t.Helper()
	file := t.TempDir() + "/kubeconfig"
	config := clientcmdapi.NewConfig()
	config.Clusters["a"] = &clientcmdapi.Cluster{
		Server: service.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}),
	}
	config.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	config.CurrentContext = "a"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestNew refuses what nothing can be made of.
func TestNew(t *testing.T) {
	client := fake.NewClientset()
	for name, o := range map[string]Options{
		"no issuer":         {ServiceAccountKey: newKey(t)},
		"no key":            {ServiceAccountIssuer: issuer},
		"no such file":      {ServiceAccountIssuer: issuer, ServiceAccountKey: newKey(t), AuthenticationConfiguration: "/nowhere"},
		"no authorization":  {ServiceAccountIssuer: issuer, ServiceAccountKey: newKey(t), AuthorizationConfiguration: "/nowhere"},
		"no such webhook":   {ServiceAccountIssuer: issuer, ServiceAccountKey: newKey(t), AuthenticationWebhook: "/nowhere"},
		"no key of RSA, EC": {ServiceAccountIssuer: issuer, ServiceAccountKey: newKey(t), ServiceAccountPublicKeys: []any{"x"}},
	} {
		if _, err := New(context.Background(), o, informers.NewSharedInformerFactory(client, 0), client); err == nil {
			t.Errorf("%s: is taken", name)
		}
	}
}
