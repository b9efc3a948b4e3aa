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
	// Who has let the first end asks by its token again.
	if next, err := m.issued("system:node:" + m.name); err != nil || !next.NotBefore.Before(first.NotAfter) {
		t.Errorf("before the first certificate ended the node had not got another: %v, %v", next, err)
	}
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
}

// issued is a client's certificate that a user has got whose name begins so.
func (m *member) issued(user string) (*x509.Certificate, error) {
	list, err := m.plane.Client.CertificatesV1().CertificateSigningRequests().List(m.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range list.Items {
		block, _ := pem.Decode(r.Status.Certificate)
		if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && block != nil && strings.HasPrefix(r.Spec.Username, user) {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("there is none for " + user)
}
