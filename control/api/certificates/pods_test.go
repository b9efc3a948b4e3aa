package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func stubOf(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// asking is a request that holds to all rules, and its key.
func asking(t *testing.T) (*v1.PodCertificateRequest, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t, elliptic.P256())
	r := &v1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "ns", UID: "u", ResourceVersion: "1"}}
	r.Spec = v1.PodCertificateRequestSpec{
		SignerName: "example.com/s", PodName: "p", PodUID: "1", ServiceAccountName: "a", ServiceAccountUID: "2", NodeName: "n", NodeUID: "3",
		StubPKCS10Request: stubOf(t, key), UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
	}
	SetPodRequestDefaults(r)
	return r, key
}

func holds(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if (len(errs) == 0) != (want == "") || want != "" && !strings.Contains(errs.ToAggregate().Error(), want) {
		t.Errorf("%s: %v, want %q", name, errs.ToAggregate(), want)
	}
}

func TestPodRequest(t *testing.T) {
	type request = v1.PodCertificateRequest
	for want, change := range map[string]func(*request){
		"":                   func(*request) {},
		"spec.signerName":    func(r *request) { r.Spec.SignerName = "s" },
		"spec.podName":       func(r *request) { r.Spec.PodName = "../p" },
		"spec.podUID":        func(r *request) { r.Spec.PodUID = "" },
		"spec.nodeUID":       func(r *request) { r.Spec.NodeUID = types.UID(strings.Repeat("3", maxUID+1)) },
		"serviceAccountName": func(r *request) { r.Spec.ServiceAccountName = "" },
		"[3600, 7862400]":    func(r *request) { r.Spec.MaxExpirationSeconds = new(int32(60)) },
		"[3600, 86400]": func(r *request) {
			r.Spec.SignerName = "kubernetes.io/x"
			r.Spec.MaxExpirationSeconds = new(int32(86401))
		},
		"must be set":         func(r *request) { r.Spec.MaxExpirationSeconds = nil },
		"userAnnotations":     func(r *request) { r.Spec.UnverifiedUserAnnotations = map[string]string{"a": "b"} },
		"valid PKCS#10":       func(r *request) { r.Spec.StubPKCS10Request = []byte("x") },
		"must use curve P256": func(r *request) { r.Spec.StubPKCS10Request = stubOf(t, newKey(t, elliptic.P224())) },
		"invalid signature":   func(r *request) { b := r.Spec.StubPKCS10Request; b[len(b)-1] ^= 1 },
		"Too long":            func(r *request) { r.Spec.StubPKCS10Request = make([]byte, maxStub+1) },
	} {
		r, _ := asking(t)
		change(r)
		holds(t, want, ValidatePodRequest(r), strings.Replace(want, "userAnnotations", "unverifiedUserAnnotations", 1))
	}
	old, _ := asking(t)
	if *old.Spec.MaxExpirationSeconds != podSeconds {
		t.Errorf("the default is %d", *old.Spec.MaxExpirationSeconds)
	}
	now := old.DeepCopy()
	holds(t, "unchanged", ValidatePodRequestUpdate(now, old), "")
	now.Spec.PodName = "q"
	holds(t, "changed", ValidatePodRequestUpdate(now, old), "immutable")
}

func TestPodAnswer(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	old, key := asking(t)
	sign := func(of crypto.PublicKey, life time.Duration, names ...string) v1.PodCertificateRequestStatus {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(life), DNSNames: names}
		der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, of, key)
		if err != nil {
			t.Fatal(err)
		}
		at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
		return v1.PodCertificateRequestStatus{
			CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
			NotBefore:        at(0), BeginRefreshAt: at(life / 2), NotAfter: at(life),
			Conditions: []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.NewTime(now)}},
		}
	}
	says := func(kind string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.NewTime(now)}}
	}
	type status = v1.PodCertificateRequestStatus
	good := sign(key.Public(), 2*time.Hour)
	changed := func(change func(*status)) status {
		s := *good.DeepCopy()
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		is   status
		want string
	}{
		"issued":        {good, ""},
		"denied":        {status{Conditions: says("Denied")}, ""},
		"failed":        {status{Conditions: says("Failed")}, ""},
		"untouched":     {status{}, ""},
		"undecided":     {status{CertificateChain: "x"}, "status is immutable unless"},
		"denied with":   {changed(func(s *status) { s.Conditions = says("Denied") }), "must be empty when denying"},
		"of two minds":  {changed(func(s *status) { s.Conditions = append(s.Conditions, says("Failed")...) }), "at most one"},
		"unknown":       {status{Conditions: says("Approved")}, "supported values"},
		"not true":      {changed(func(s *status) { s.Conditions[0].Status = metav1.ConditionFalse }), "supported values"},
		"another key":   {sign(newKey(t, elliptic.P256()).Public(), 2*time.Hour), "requested public key"},
		"too short":     {sign(key.Public(), 59*time.Minute), ">= 1 hour"},
		"too long":      {sign(key.Public(), 25*time.Hour), "<= spec.maxExpirationSeconds"},
		"a bad name":    {sign(key.Public(), 2*time.Hour, "a..b"), "DNSName"},
		"nothing":       {changed(func(s *status) { s.CertificateChain = "x" }), "at least one certificate"},
		"another block": {changed(func(s *status) { s.CertificateChain += "-----BEGIN X-----\nYQ==\n-----END X-----\n" }), "entirely of CERTIFICATE"},
		"too large":     {changed(func(s *status) { s.CertificateChain = strings.Repeat("x", maxChain+1) }), "Too long"},
		"no time":       {changed(func(s *status) { s.BeginRefreshAt = nil }), "beginRefreshAt"},
		"other times":   {changed(func(s *status) { s.NotAfter = s.NotBefore }), "encoded in the leaf"},
		"renewed early": {changed(func(s *status) { s.BeginRefreshAt = s.NotBefore }), "10 minutes after"},
		"renewed late":  {changed(func(s *status) { s.BeginRefreshAt = s.NotAfter }), "10 minutes before"},
	} {
		r := old.DeepCopy()
		r.Status = c.is
		holds(t, name, podAnswer(r, old, now), c.want)
		if c.want == "" && len(c.is.Conditions) > 0 {
			again := r.DeepCopy()
			holds(t, name+" again", podAnswer(again, r, now), "")
			again.Status.Conditions[0].Message = "another"
			holds(t, name+" otherwise", podAnswer(again, r, now), "immutable after")
		}
	}
	r := old.DeepCopy()
	r.Status = good
	holds(t, "an hour later", podAnswer(r, old, now.Add(time.Hour)), "within 5 minutes")
}
