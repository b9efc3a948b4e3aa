package system

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRenewal has a node outlive its certificates, by the real clock: each is good for three minutes.
func TestRenewal(t *testing.T) {
	if os.Getenv("BERTH_TEST_LONG") == "" {
		t.Skip("takes as long as certificates live: make test-long")
	}
	t.Parallel()
	m := joinedTo(t, []string{"--cluster-signing-duration=3m"})
	m.create(m.bound("stays"))
	m.apiReady("stays")
	first, err := m.issued("system:bootstrap:")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(time.Until(first.NotAfter)): // what is tested: it ends
	case <-t.Context().Done():
	}
	m.eventually("a certificate that the node has asked for by its own name", func() error {
		_, err := m.issued("system:node:" + m.name)
		return err
	})
	m.eventually("a Lease that was renewed after the first certificate had ended", func() error {
		l, err := m.plane.Client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), m.name, metav1.GetOptions{})
		if err == nil && !l.Spec.RenewTime.After(first.NotAfter) {
			err = fmt.Errorf("it was renewed at %s", l.Spec.RenewTime)
		}
		return err
	})
	m.create(m.bound("comes"))
	m.apiReady("comes")
	if p := m.apiReady("stays"); p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod that was there is %+v", p.Status)
	}
	// Who has let the first end has to ask again by the token, which a node may have once only.
	if many := m.requests("system:bootstrap:"); len(many) != 1 {
		t.Errorf("%d certificates were asked for by a token", len(many))
	}
}

// requests are those for a client's certificate by users whose names begin so.
func (m *member) requests(user string) (out []certificatesv1.CertificateSigningRequest) {
	m.t.Helper()
	list, err := m.plane.Client.CertificatesV1().CertificateSigningRequests().List(m.t.Context(), metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, r := range list.Items {
		if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && strings.HasPrefix(r.Spec.Username, user) {
			out = append(out, r)
		}
	}
	return out
}

// issued is the certificate that such a request has got.
func (m *member) issued(user string) (*x509.Certificate, error) {
	m.t.Helper()
	for _, r := range m.requests(user) {
		if block, _ := pem.Decode(r.Status.Certificate); block != nil {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("there is none for " + user)
}
