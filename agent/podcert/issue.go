package podcert

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// newKey makes a key of a type, by the API's names.
func newKey(kind string) (crypto.Signer, error) {
	switch kind {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("key type %q is not known", kind)
}

// issue has a certificate be made for a new key, and says when it is to be renewed.
func (m *Manager) issue(ctx context.Context, h *holder) (Credential, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, signing)
	defer cancel()
	key, err := newKey(h.want.KeyType)
	if err != nil {
		return Credential{}, 0, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Credential{}, 0, err
	}
	r, err := m.request(ctx, h, key)
	if err != nil {
		return Credential{}, 0, fmt.Errorf("request certificate of signer %s: %w", h.want.SignerName, err)
	}
	s, err := m.answer(ctx, r)
	if err == nil {
		var chain []byte
		if chain, err = chainOf(s.CertificateChain, key.Public()); err == nil {
			return Credential{pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), chain}, refreshIn(s, time.Now()), nil
		}
	}
	return Credential{}, 0, fmt.Errorf("podcertificaterequest %q of signer %s: %w", r.Name, h.want.SignerName, err)
}

// request asks the signer. The server checks that all that it names belongs together.
func (m *Manager) request(ctx context.Context, h *holder, key crypto.Signer) (*asked, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	var account corev1.ServiceAccount
	var node corev1.Node
	of := types.NamespacedName{Namespace: h.pod.Namespace, Name: h.pod.Spec.ServiceAccountName}
	if err := m.cfg.Client.Get(ctx, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), of, &account); err != nil {
		return nil, err
	}
	of = types.NamespacedName{Name: m.cfg.Node}
	if err := m.cfg.Client.Get(ctx, corev1.SchemeGroupVersion.WithResource("nodes"), of, &node); err != nil {
		return nil, err
	}
	return ask(ctx, m.cfg.Client, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: h.pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: h.pod.Name, UID: h.pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: h.want.SignerName, PodName: h.pod.Name, PodUID: h.pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID, NodeName: types.NodeName(m.cfg.Node), NodeUID: node.UID,
			MaxExpirationSeconds: h.want.MaxExpirationSeconds, StubPKCS10Request: csr, UnverifiedUserAnnotations: h.want.UserAnnotations,
		},
	})
}

// again is how long after a watch has ended another one begins.
const again = 5 * time.Second

// answer waits for what the signer says. A node may watch the requests that name it, and each by its name.
func (m *Manager) answer(ctx context.Context, r *asked) (*certificatesv1.PodCertificateRequestStatus, error) {
	only := fields.Set{"metadata.name": r.Name, "spec.nodeName": m.cfg.Node}.AsSelector().String()
	for {
		if s, done, err := verdict(r.PodCertificateRequest); done {
			return s, err
		}
		w, err := r.watch(ctx, metav1.ListOptions{FieldSelector: only, ResourceVersion: r.ResourceVersion})
		if err == nil {
			for e := range w.ResultChan() {
				now := of(e.Object)
				if now == nil || now.Name != r.Name || now.UID != r.UID {
					continue
				}
				if s, done, err := verdict(now); done {
					w.Stop()
					return s, err
				}
			}
			w.Stop()
		}
		pause := time.NewTimer(again)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, errUnanswered
		case <-pause.C:
		}
		if now, err := r.get(ctx); err == nil && now.UID == r.UID {
			r.PodCertificateRequest = now
		}
	}
}

// refusal is that of a signer: it is asked no more for a pod that has no certificate.
type refusal struct{ why string }

func (r *refusal) Error() string { return r.why }

// verdict is what a signer has said, if it has.
func verdict(r *certificatesv1.PodCertificateRequest) (s *certificatesv1.PodCertificateRequestStatus, done bool, err error) {
	for _, t := range []string{certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed} {
		if c := meta.FindStatusCondition(r.Status.Conditions, t); c != nil && c.Status == metav1.ConditionTrue {
			return nil, true, &refusal{fmt.Sprintf("%s: %s: %s", t, c.Reason, c.Message)}
		}
	}
	issued := meta.IsStatusConditionTrue(r.Status.Conditions, certificatesv1.PodCertificateRequestConditionTypeIssued)
	return &r.Status, issued, nil
}

// maxChain bounds a chain in bytes.
const maxChain = 256 << 10

// chainOf are the certificates of a chain without anything else. The first one has to be of the key.
func chainOf(text string, key crypto.PublicKey) ([]byte, error) {
	if len(text) > maxChain {
		return nil, fmt.Errorf("its chain has %d bytes, more than %d", len(text), maxChain)
	}
	var out []byte
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if out == nil {
			leaf, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("its certificate: %w", err)
			}
			if of, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !of.Equal(key) {
				return nil, errors.New("its certificate is for another key")
			}
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if out == nil {
		return nil, errors.New("it has no certificate")
	}
	return out, nil
}

// refreshIn is when the signer wants to be asked again; where it does not say, or says nonsense, at four fifths of what
// is left.
func refreshIn(s *certificatesv1.PodCertificateRequestStatus, now time.Time) time.Duration {
	const unknown = 12 * time.Hour
	if s.NotAfter == nil {
		return unknown
	}
	if b := s.NotBefore; b != nil && (now.Before(b.Time) || now.After(s.NotAfter.Time)) {
		now = b.Time // this machine's clock is wrong, and may be set while nobody looks
	}
	latest := s.NotAfter.Sub(now) / 5 * 4
	if s.BeginRefreshAt == nil {
		return max(latest, soonest)
	}
	return max(min(s.BeginRefreshAt.Sub(now), latest), soonest)
}
