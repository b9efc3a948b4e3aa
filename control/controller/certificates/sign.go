package certificates

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/berth-node/berth/control/controller"
)

const (
	// Longest is how long what is signed is good by default, and shortest the least that can be asked for.
	Longest  = 365 * 24 * time.Hour
	shortest = 10 * time.Minute
	// skew is how far the clock of a client may be behind ours. A certificate that is good for less than shortLife is
	// so from now on, and no shorter.
	skew      = 5 * time.Minute
	shortLife = 8 * time.Hour
)

// Authority is the certificate and key that is signed with, read anew each time: it may be replaced.
type Authority func() (*x509.Certificate, crypto.Signer, error)

// check says what is wrong with a request, for its signer.
type check func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error

// signers are those whose requests are signed here.
func signers() map[string]check {
	return map[string]check{
		certificatesv1.KubeAPIServerClientSignerName:        checkClient,
		certificatesv1.KubeAPIServerClientKubeletSignerName: checkNodeClient,
		certificatesv1.KubeletServingSignerName:             checkNodeServing,
		"kubernetes.io/legacy-unknown":                      checkAny, // the API takes no new ones
	}
}

type signer struct {
	client    kubernetes.Interface
	requests  certificateslisters.CertificateSigningRequestLister
	authority Authority
	checks    map[string]check
	longest   time.Duration
	now       func() time.Time
}

// NewSigner makes the controller that signs what is approved. What it signs is good for longest, or shorter if that is
// asked for.
func NewSigner(client kubernetes.Interface, requests certificatesinformers.CertificateSigningRequestInformer, authority Authority, longest time.Duration, log *slog.Logger) controller.Controller {
	s := &signer{client, requests.Lister(), authority, signers(), longest, time.Now}
	return controller.NewLoop(log, workers, s.sync).Of(senderOf(requests.Lister())).Watch(requests.Informer(), controller.Name)
}

func (s *signer) sync(ctx context.Context, name string) (time.Duration, error) {
	o, err := s.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find request %s: %w", name, err)
	}
	check, ours := s.checks[o.Spec.SignerName]
	if !ours || len(o.Status.Certificate) > 0 || has(o, certificatesv1.CertificateFailed) ||
		has(o, certificatesv1.CertificateDenied) || !has(o, certificatesv1.CertificateApproved) {
		return 0, nil
	}
	o = o.DeepCopy()
	r, err := parse(o)
	var usage x509.KeyUsage
	var purposes []x509.ExtKeyUsage
	if err == nil {
		err = check(r, o.Spec.Usages)
	}
	if err == nil {
		usage, purposes, err = usages(o.Spec.Usages)
	}
	if err != nil {
		o.Status.Conditions = append(o.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: err.Error(),
		})
	} else if o.Status.Certificate, err = s.sign(r, usage, purposes, o.Spec.ExpirationSeconds); err != nil {
		return 0, fmt.Errorf("sign request %s: %w", name, err)
	}
	_, err = s.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, o, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write certificate of request %s: %w", name, err)
	}
	return 0, nil
}

// life is how long a certificate is good.
func (s *signer) life(seconds *int32) time.Duration {
	if seconds == nil {
		return s.longest
	}
	return min(max(time.Duration(*seconds)*time.Second, shortest), s.longest)
}

// sign makes the certificate, PEM.
func (s *signer) sign(r *x509.CertificateRequest, usage x509.KeyUsage, purposes []x509.ExtKeyUsage, seconds *int32) ([]byte, error) {
	ca, key, err := s.authority()
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now, good := s.now(), s.life(seconds)
	t := &x509.Certificate{
		SerialNumber: serial, RawSubject: r.RawSubject, Subject: r.Subject,
		DNSNames: r.DNSNames, IPAddresses: r.IPAddresses, EmailAddresses: r.EmailAddresses, URIs: r.URIs,
		NotBefore: now, NotAfter: now.Add(good), KeyUsage: usage, ExtKeyUsage: purposes, BasicConstraintsValid: true,
	}
	if good >= shortLife {
		t.NotBefore = now.Add(-skew)
		t.NotAfter = t.NotAfter.Add(-skew)
	}
	// What outlives its authority is nothing that anybody could verify.
	if t.NotAfter.After(ca.NotAfter) {
		t.NotAfter = ca.NotAfter
	}
	if !t.NotAfter.After(now) {
		return nil, fmt.Errorf("the authority has ended on %s", ca.NotAfter.Format(time.RFC3339))
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, r.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// usages are what a certificate says of its key.
func usages(all []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var usage x509.KeyUsage
	var purposes []x509.ExtKeyUsage
	for _, u := range all {
		bit, ok := keyUsages()[u]
		purpose, extended := purposesOf()[u]
		switch {
		case ok:
			usage |= bit
		case extended:
			purposes = append(purposes, purpose)
		default:
			return 0, nil, fmt.Errorf("its usage %q is not known", u)
		}
	}
	return usage, purposes, nil
}

func keyUsages() map[certificatesv1.KeyUsage]x509.KeyUsage {
	return map[certificatesv1.KeyUsage]x509.KeyUsage{
		certificatesv1.UsageSigning: x509.KeyUsageDigitalSignature, certificatesv1.UsageDigitalSignature: x509.KeyUsageDigitalSignature,
		certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
		certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment, certificatesv1.UsageKeyAgreement: x509.KeyUsageKeyAgreement,
		certificatesv1.UsageDataEncipherment: x509.KeyUsageDataEncipherment, certificatesv1.UsageCertSign: x509.KeyUsageCertSign,
		certificatesv1.UsageCRLSign: x509.KeyUsageCRLSign, certificatesv1.UsageEncipherOnly: x509.KeyUsageEncipherOnly,
		certificatesv1.UsageDecipherOnly: x509.KeyUsageDecipherOnly,
	}
}

func purposesOf() map[certificatesv1.KeyUsage]x509.ExtKeyUsage {
	return map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		certificatesv1.UsageAny: x509.ExtKeyUsageAny, certificatesv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
		certificatesv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certificatesv1.UsageCodeSigning: x509.ExtKeyUsageCodeSigning,
		certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection, certificatesv1.UsageSMIME: x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageIPsecEndSystem: x509.ExtKeyUsageIPSECEndSystem, certificatesv1.UsageIPsecTunnel: x509.ExtKeyUsageIPSECTunnel,
		certificatesv1.UsageIPsecUser: x509.ExtKeyUsageIPSECUser, certificatesv1.UsageTimestamping: x509.ExtKeyUsageTimeStamping,
		certificatesv1.UsageOCSPSigning: x509.ExtKeyUsageOCSPSigning, certificatesv1.UsageMicrosoftSGC: x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		certificatesv1.UsageNetscapeSGC: x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
}
