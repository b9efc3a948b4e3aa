// Package certificates approves, signs and removes requests for certificates, as Kubernetes does: the client
// certificate of a node is approved if whoever asks for it may have it, all that is approved is signed if it is what
// its signer is for, and requests go when nobody needs them any more.
package certificates

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/berth-node/berth/control/api/certificates"
)

const (
	nodeGroup  = "system:nodes"
	nodePrefix = "system:node:"
	// maxRequest bounds what is parsed of a request. One for a node takes some 500 bytes.
	maxRequest = 64 << 10
)

// parse reads the PKCS #10 request in an object.
func parse(o *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	if len(o.Spec.Request) > maxRequest {
		return nil, fmt.Errorf("it has more than %d bytes", maxRequest)
	}
	return certificates.Parse(o.Spec.Request)
}

// senderOf says who has sent a request of a name. Who sends thousands has their turns with others, as namespaces have.
func senderOf(requests certificateslisters.CertificateSigningRequestLister) func(string) string {
	return func(name string) string {
		if o, err := requests.Get(name); err == nil {
			return o.Spec.Username
		}
		return ""
	}
}

// checkClient is what any client's certificate has to be.
func checkClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return checkUsages(usages, certificatesv1.UsageClientAuth)
}

// checkAny is what the signer of old requests takes.
func checkAny(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil }

// checkNodeClient is what the certificate has to be by which a node is known to the API server.
func checkNodeClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(r); err != nil {
		return err
	}
	if len(r.DNSNames)+len(r.IPAddresses) > 0 {
		return errors.New("a client has no names and addresses of its own")
	}
	return checkUsages(usages, certificatesv1.UsageClientAuth)
}

// checkNodeServing is what the certificate has to be that a kubelet serves with.
func checkNodeServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(r); err != nil {
		return err
	}
	if len(r.DNSNames)+len(r.IPAddresses) == 0 {
		return errors.New("it names neither a host nor an address")
	}
	return checkUsages(usages, certificatesv1.UsageServerAuth)
}

// checkNode is what both certificates of a node have in common. The subject is signed as it is written: an attribute
// that is not known here would be in the certificate, too.
func checkNode(r *x509.CertificateRequest) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{nodeGroup}):
		return fmt.Errorf("its organization is %q and not %s", r.Subject.Organization, nodeGroup)
	case nodeOf(r.Subject.CommonName) == "":
		return fmt.Errorf("its common name %q is none of a node", r.Subject.CommonName)
	case len(r.Subject.Names) != 2:
		return errors.New("its subject has more than an organization and a common name")
	case len(r.EmailAddresses) > 0:
		return errors.New("it names mail addresses")
	case len(r.URIs) > 0:
		return errors.New("it names URIs")
	}
	return nil
}

// nodeOf is the node whose user name it is; empty: of none.
func nodeOf(user string) string {
	name, found := strings.CutPrefix(user, nodePrefix)
	if !found {
		return ""
	}
	return name
}

// checkUsages allows for one purpose, with what a handshake needs of a key.
func checkUsages(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) error {
	if !slices.Contains(usages, purpose) {
		return fmt.Errorf("its usages %q are without %q", usages, purpose)
	}
	for _, u := range usages {
		if u != purpose && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Errorf("its usages have %q, which is not for %q", u, purpose)
		}
	}
	return nil
}

// condition is the condition of a kind, or nil.
func condition(o *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequestCondition {
	for i := range o.Status.Conditions {
		// One that is false says nothing; the API allows for none.
		if c := &o.Status.Conditions[i]; c.Type == kind && c.Status != corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

func has(o *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return condition(o, kind) != nil
}

// undecided says whether nobody has approved or denied a request yet.
func undecided(o *certificatesv1.CertificateSigningRequest) bool {
	return len(o.Status.Certificate) == 0 && !has(o, certificatesv1.CertificateApproved) &&
		!has(o, certificatesv1.CertificateDenied) && !has(o, certificatesv1.CertificateFailed)
}
