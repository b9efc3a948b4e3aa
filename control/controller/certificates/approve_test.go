package certificates

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-node/berth/control/controller"
)

// object is a request for a node's client certificate, as an object.
func object(t *testing.T, name, user string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	r := request(t, x509.CertificateRequest{Subject: subject("system:node:a", "system:nodes")})
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: r.Raw}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: user,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// listed is a lister of objects that are there, and of no others.
func listed(t *testing.T, all ...*certificatesv1.CertificateSigningRequest) certificateslisters.CertificateSigningRequestLister {
	t.Helper()
	i := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Certificates().V1().CertificateSigningRequests()
	for _, o := range all {
		if err := i.Informer().GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return i.Lister()
}

// TestRights approves by the rights that the API server knows of, for the one who has asked and nobody else.
func TestRights(t *testing.T) {
	for _, c := range []struct {
		user, right string
		approved    bool
	}{
		{"system:bootstrap:abcdef", "nodeclient", true},
		{"system:bootstrap:abcdef", "selfnodeclient", false}, // it is not itself
		{"system:node:a", "selfnodeclient", true},
		{"system:node:b", "selfnodeclient", false},
		{"somebody", "", false},
	} {
		o := object(t, "r", c.user)
		client := fake.NewClientset(o)
		client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			r := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			at := r.Spec.ResourceAttributes
			r.Status.Allowed = r.Spec.User == c.user && at.Subresource == c.right && at.Resource == "certificatesigningrequests" && at.Verb == "create"
			return true, r, nil
		})
		a := &approver{client, listed(t, o)}
		_, err := a.sync(t.Context(), "r")
		if (err == nil) != c.approved || err != nil && !errors.Is(err, controller.ErrWait) {
			t.Errorf("%s with %s: %v", c.user, c.right, err)
		}
		got, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil || has(got, certificatesv1.CertificateApproved) != c.approved {
			t.Errorf("%s with %s: it has %v, %v", c.user, c.right, got.Status.Conditions, err)
		}
	}
}

// TestSign signs what is approved, once, and for no longer than the authority is good.
func TestSign(t *testing.T) {
	now := time.Now()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}
	good, waits, denied := object(t, "good", "u"), object(t, "waits", "u"), object(t, "denied", "u")
	good.Status.Conditions = append(good.Status.Conditions, approved)
	denied.Status.Conditions = append(denied.Status.Conditions, approved, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue,
	})
	client := fake.NewClientset(good, waits, denied)
	s := &signer{client, listed(t, good, waits, denied), func() (*x509.Certificate, crypto.Signer, error) { return ca, key, nil }, signers(), Longest, time.Now}
	for _, name := range []string{"good", "waits", "denied", "gone"} {
		if _, err := s.sync(context.Background(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all.Items {
		if (len(o.Status.Certificate) > 0) != (o.Name == "good") {
			t.Errorf("%s has a certificate: %v", o.Name, len(o.Status.Certificate) > 0)
		}
		if o.Name != "good" {
			continue
		}
		block, _ := pem.Decode(o.Status.Certificate)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || cert.CheckSignatureFrom(ca) != nil || cert.IsCA || !cert.NotAfter.Equal(ca.NotAfter) {
			t.Errorf("it is %v, %v", cert, err)
		}
	}
}

// TestManySenders has somebody send hundreds of requests before a node sends one: it does not wait for them.
func TestManySenders(t *testing.T) {
	const many = 400
	first := object(t, "0", "mallory")
	client, users := fake.NewClientset(), make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review, _ := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		select {
		case users <- review.Spec.User:
		case <-ctx.Done():
		}
		return true, review, nil
	})
	requests := map[string]*certificatesv1.CertificateSigningRequest{}
	for n := range many {
		o := first.DeepCopy()
		o.Name = fmt.Sprint(n)
		requests[o.Name] = o
	}
	requests["node"] = object(t, "node", "system:node:a")
	var all []runtime.Object
	for _, o := range requests {
		all = append(all, o)
	}
	i := informers.NewSharedInformerFactory(fake.NewClientset(all...), 0).Certificates().V1().CertificateSigningRequests()
	for _, o := range requests {
		if err := i.Informer().GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	loop, is := NewApprover(client, i, slog.New(slog.DiscardHandler)).(*controller.Loop[string])
	if !is {
		t.Fatal("it is no loop")
	}
	for n := range many {
		loop.Add(fmt.Sprint(n))
	}
	loop.Add("node")
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() { i.Informer().RunWithContext(ctx); close(stopped) }()
	go func() { loop.Run(ctx); close(ended) }()
	before := 0
	for <-users != "system:node:a" {
		before++
	}
	if before > 5 {
		t.Errorf("it waits for %d requests", before)
	}
	cancel()
	<-ended
	<-stopped
}
