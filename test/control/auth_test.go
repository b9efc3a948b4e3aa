package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"net/url"
	"os"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testCertificates has a request go its way: approved by who may, then signed by who may, each once.
func testCertificates(t *testing.T, p *plane) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "someone"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, requests := t.Context(), p.client.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "someone"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: "example.com/signer", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}
	sneaky := r.DeepCopy()
	sneaky.Status.Conditions = append(sneaky.Status.Conditions, approved)
	if got, err := requests.UpdateStatus(ctx, sneaky, metav1.UpdateOptions{}); err == nil && len(got.Status.Conditions) > 0 {
		t.Errorf("a signer approves: %+v", got.Status)
	}
	if r, err = requests.Get(ctx, r.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Status.Conditions = append(r.Status.Conditions, approved)
	if r, err = requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); err != nil || len(r.Status.Conditions) != 1 {
		t.Fatalf("approve: %+v, %v", r.Status, err)
	}
	back := r.DeepCopy()
	back.Status.Conditions = nil
	if _, err := requests.UpdateApproval(ctx, r.Name, back, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an approval is taken back: %v", err)
	}
	signed, err := os.ReadFile(p.dir + "/pki/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Certificate = signed
	if r, err = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil || len(r.Status.Certificate) == 0 || len(r.Status.Conditions) != 1 {
		t.Fatalf("sign: %+v, %v", r.Status, err)
	}
	r.Status.Certificate = append(signed, signed...)
	if _, err := requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a certificate is replaced: %v", err)
	}
}

// testIssuer follows what others verify tokens by: from the issuer's description to its keys.
func testIssuer(t *testing.T, p *plane) {
	get := func(path string, into any) {
		t.Helper()
		data, err := p.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
	}
	var issuer struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	get("/.well-known/openid-configuration", &issuer)
	where, err := url.Parse(issuer.Keys)
	if err != nil || where.Port() == "" || where.Hostname() == "" || issuer.Issuer != "https://kubernetes.default.svc" {
		t.Fatalf("%+v: %v", issuer, err)
	}
	var keys struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if get(where.Path, &keys); len(keys.Keys) != 1 || keys.Keys[0].ID == "" {
		t.Errorf("keys: %+v", keys)
	}
}
