package system

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// authority is what certificates are signed by.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, is, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// sign makes the certificate that a pod's request asks for.
func (a *authority) sign(r *certificatesv1.PodCertificateRequest) (certificatesv1.PodCertificateRequestStatus, error) {
	asks, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return certificatesv1.PodCertificateRequestStatus{}, err
	}
	begin := time.Now().Truncate(time.Second)
	is := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: begin, NotAfter: begin.Add(2 * time.Hour),
		DNSNames: []string{r.Spec.PodName + ".pods.example.com"},
	}
	der, err := x509.CreateCertificate(rand.Reader, is, a.cert, asks.PublicKey, a.key)
	if err != nil {
		return certificatesv1.PodCertificateRequestStatus{}, err
	}
	at := func(t time.Time) *metav1.Time { return new(metav1.NewTime(t)) }
	return certificatesv1.PodCertificateRequestStatus{
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + a.pem,
		NotBefore:        at(is.NotBefore), BeginRefreshAt: at(begin.Add(time.Hour)), NotAfter: at(is.NotAfter),
		Conditions: []metav1.Condition{answer(certificatesv1.PodCertificateRequestConditionTypeIssued, "")},
	}, nil
}

func answer(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", Message: message, LastTransitionTime: metav1.Now()}
}

// bundle writes a ClusterTrustBundle.
func (m *member) bundle(name, signer, text string) {
	m.t.Helper()
	all := m.plane.Client.CertificatesV1().ClusterTrustBundles()
	b := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"use": "test"}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
	}
	now, err := all.Get(m.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		now.Spec.TrustBundle = text
		_, err = all.Update(m.t.Context(), now, metav1.UpdateOptions{})
	} else {
		_, err = all.Create(m.t.Context(), b, metav1.CreateOptions{})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) unbundle(name string) {
	m.t.Helper()
	if err := m.plane.Client.CertificatesV1().ClusterTrustBundles().Delete(m.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
}

// projecting has a pod have sources of a projected volume at /v.
func projecting(sources ...corev1.VolumeProjection) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	}
}

func trusting(s corev1.ClusterTrustBundleProjection) corev1.VolumeProjection {
	return corev1.VolumeProjection{ClusterTrustBundle: &s}
}

// sees waits until a file in a pod has so many certificates, among them one.
func (m *member) sees(pod, file string, many int, one string) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%d certificates in %s of pod %s", many, file, pod), func() error {
		out, errs, code := m.berth("exec", pod, "--", "cat", "/v/"+file)
		if n := strings.Count(out, "-----BEGIN CERTIFICATE-----"); code != 0 || n != many || !strings.Contains(out, one) {
			return fmt.Errorf("there are %d: %s", n, errs)
		}
		return nil
	})
}

// TestTrustBundles gives pods the trust bundles of a name and those of a signer, as they are and as they change,
// without those that need not be there; a pod waits for the others.
func TestTrustBundles(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	const signer = "example.com/ca"
	first, second, third := newAuthority(t).pem, newAuthority(t).pem, newAuthority(t).pem
	m.bundle("plain", "", first)
	m.bundle("example.com:ca:one", signer, first)
	m.bundle("example.com:ca:two", signer, first+second) // each certificate is given once
	which := &metav1.LabelSelector{MatchLabels: map[string]string{"use": "test"}}
	p := m.create(m.bound("trusts", projecting(
		trusting(corev1.ClusterTrustBundleProjection{Name: new("plain"), Path: "named.pem"}),
		trusting(corev1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: which, Path: "signed.pem"}),
		trusting(corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(true), Path: "none.pem"}),
	)))
	m.create(m.bound("waits", projecting(trusting(corev1.ClusterTrustBundleProjection{Name: new("late"), Path: "late.pem"}))))
	before := m.apiReady("trusts")
	m.sees("trusts", "named.pem", 1, first)
	m.sees("trusts", "signed.pem", 2, second)
	m.sees("trusts", "none.pem", 0, "")

	m.bundle("plain", "", second+third)
	m.sees("trusts", "named.pem", 2, third)
	m.bundle("none", "", third)
	m.sees("trusts", "none.pem", 1, third)
	m.unbundle("none")
	m.sees("trusts", "none.pem", 0, "")
	m.bundle("example.com:ca:two", signer, third)
	m.sees("trusts", "signed.pem", 2, third)
	m.unbundle("example.com:ca:two")
	m.sees("trusts", "signed.pem", 1, first)
	m.unbundle("plain") // what the pod has to have stays as it was
	m.requireEvents(p, "FailedMount")
	m.sees("trusts", "named.pem", 2, third)
	m.bundle("plain", "", first)
	m.sees("trusts", "named.pem", 1, first)
	m.requireSame(before, m.apiReady("trusts"))

	m.bundle("late", "", first)
	m.apiReady("waits")
	m.sees("waits", "late.pem", 1, first)
	for _, name := range []string{"trusts", "waits"} {
		m.delete(name, nil)
		m.apiGone(name)
	}
	m.requireNoPods()
}

// signs answers requests for certificates of pods until the test ends, by the name of the signer, whenever there is a
// control plane.
func (m *member) signs(a *authority) {
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan struct{})
	m.t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			w, err := m.plane.Client.CertificatesV1().PodCertificateRequests("default").Watch(ctx, metav1.ListOptions{})
			if err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
				continue
			}
			for e := range w.ResultChan() {
				if r, ok := e.Object.(*certificatesv1.PodCertificateRequest); ok && e.Type != watch.Deleted && len(r.Status.Conditions) == 0 {
					m.sign(ctx, a, r)
				}
			}
		}
	}()
}

func (m *member) sign(ctx context.Context, a *authority, r *certificatesv1.PodCertificateRequest) {
	var err error
	switch r.Spec.SignerName {
	case "example.com/good":
		r.Status, err = a.sign(r)
	case "example.com/denies":
		r.Status.Conditions = []metav1.Condition{answer("Denied", "not you")}
	case "example.com/fails":
		r.Status.Conditions = []metav1.Condition{answer("Failed", "broken")}
	default:
		return
	}
	if err == nil {
		_, err = m.plane.Client.CertificatesV1().PodCertificateRequests(r.Namespace).UpdateStatus(ctx, r, metav1.UpdateOptions{})
	}
	if err != nil { // it is answered when it is told of again, if it is there then
		m.t.Logf("answer %s: %v", r.Name, err)
	}
}

// requested are the requests of a pod.
func (m *member) requested(pod string) []certificatesv1.PodCertificateRequest {
	m.t.Helper()
	list, err := m.plane.Client.CertificatesV1().PodCertificateRequests("default").List(m.t.Context(), metav1.ListOptions{
		FieldSelector: "spec.podName=" + pod,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return list.Items
}

// certified is a pod that asks a signer for a certificate.
func (m *member) certified(name, signer string) *corev1.Pod {
	m.t.Helper()
	return m.create(m.bound(name, projecting(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName: "example.com/" + signer, KeyType: "ECDSAP256", MaxExpirationSeconds: new(int32(7200)), CredentialBundlePath: "all.pem",
		KeyPath: "key.pem", CertificateChainPath: "chain.pem", UserAnnotations: map[string]string{"example.com/a": "b"},
	}})))
}

// holds is the certificate that a pod has, with its key.
func (m *member) holds(pod string) (*x509.Certificate, error) {
	file := func(name string) string {
		out, _, _ := m.berth("exec", pod, "--", "cat", "/v/"+name)
		return out
	}
	key, chain, all := file("key.pem"), file("chain.pem"), file("all.pem")
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil || key+chain != all || len(pair.Certificate) != 2 {
		return nil, fmt.Errorf("%d certificates, and both in %t: %w", len(pair.Certificate), key+chain == all, err)
	}
	return pair.Leaf, nil
}

// TestPodCertificates has pods ask signers for certificates: one has it, and another one from the next agent, one waits
// for an answer, and one that is denied or fails does not start, and is not asked for again.
func TestPodCertificates(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	a := newAuthority(t)
	m.signs(a)
	m.certified("good", "good")
	slow := m.certified("slow", "slow")
	denied, failed := m.certified("denied", "denies"), m.certified("failed", "fails")
	before := m.apiReady("good")
	leaf, err := m.holds("good")
	if err != nil || leaf.DNSNames[0] != "good.pods.example.com" {
		t.Fatalf("%v: %+v", err, leaf)
	}
	r := m.requested("good")
	if len(r) != 1 || r[0].Spec.PodUID != before.UID || string(r[0].Spec.NodeName) != m.name || r[0].Spec.ServiceAccountName != "default" ||
		r[0].Spec.UnverifiedUserAnnotations["example.com/a"] != "b" || *r[0].Spec.MaxExpirationSeconds != 7200 {
		t.Errorf("the request is %+v", r)
	}
	m.requireEvents(denied, "FailedMount")
	m.requireEvents(failed, "FailedMount")
	made := func(want int) func() error {
		return func() error {
			for _, name := range []string{"denied", "failed", "slow"} {
				if n := len(m.requested(name)); n != want {
					return fmt.Errorf("pod %s has made %d", name, n)
				}
			}
			return nil
		}
	}
	m.eventually("requests of the first agent", made(1))

	m.kill()
	m.start()
	m.eventually("another certificate in the pod", func() error {
		now, err := m.holds("good")
		if err == nil && now.SerialNumber.Cmp(leaf.SerialNumber) == 0 {
			err = fmt.Errorf("it is that of before")
		}
		return err
	})
	m.requireSame(before, m.apiReady("good"))

	// Each of the two agents has asked once, and the slow signer has not said anything.
	m.eventually("requests of the second agent", made(2))
	all := m.plane.Client.CertificatesV1().PodCertificateRequests("default")
	for _, r := range m.requested("slow") {
		if r.Status, err = a.sign(&r); err == nil {
			_, err = all.UpdateStatus(t.Context(), &r, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m.apiReady("slow")
	if leaf, err := m.holds("slow"); err != nil || leaf.DNSNames[0] != "slow.pods.example.com" {
		t.Errorf("%v: %+v", err, leaf)
	}
	for _, p := range []*corev1.Pod{before, slow, denied, failed} {
		if n := len(m.requested(p.Name)); n != 2 {
			t.Errorf("pod %s has made %d requests", p.Name, n)
		}
		m.delete(p.Name, nil)
		m.apiGone(p.Name)
	}
	m.requireNoPods()
	m.eventually("the requests to go with their pods", func() error {
		list, err := all.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}
