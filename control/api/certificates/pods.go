package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	v1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// What a certificate of a pod may be, in seconds and bytes.
const (
	podSeconds      = 24 * 60 * 60
	leastPodSeconds = 60 * 60
	mostPodSeconds  = 91 * 24 * 60 * 60
	maxStub         = 10 << 10
	maxChain        = 100 << 10
	maxUID          = 128
)

// The clocks of signers and servers differ by so much at most, and a certificate is renewed so long after its beginning
// and before its end at least.
const (
	skew  = 5 * time.Minute
	grace = 10 * time.Minute
)

// SetPodRequestDefaults fills what a request for a certificate of a pod may leave out.
func SetPodRequestDefaults(o *v1.PodCertificateRequest) {
	check.OrNew(&o.Spec.MaxExpirationSeconds, podSeconds)
}

// ValidatePodRequest holds a new request for a certificate of a pod to its rules: it says for whom, and is signed by
// the key that the certificate is to be of.
func ValidatePodRequest(o *v1.PodCertificateRequest) field.ErrorList {
	s, path := &o.Spec, field.NewPath("spec")
	errs := append(check.Meta(o, true, check.SubdomainName), signerName(path.Child("signerName"), s.SignerName)...)
	errs = append(errs, podAnnotations(path.Child("unverifiedUserAnnotations"), s.UnverifiedUserAnnotations)...)
	for _, one := range []struct {
		field, name string
		uid         types.UID
	}{
		{"pod", s.PodName, s.PodUID}, {"serviceAccount", s.ServiceAccountName, s.ServiceAccountUID}, {"node", string(s.NodeName), s.NodeUID},
	} {
		errs = append(errs, check.Invalid(path.Child(one.field+"Name"), one.name, validation.IsDNS1123Subdomain(one.name))...)
		switch at := path.Child(one.field + "UID"); {
		case one.uid == "":
			errs = append(errs, field.Invalid(at, one.uid, "must not be empty"))
		case len(one.uid) > maxUID:
			errs = append(errs, field.TooLong(at, one.uid, maxUID))
		}
	}
	errs = append(errs, podLifetime(path.Child("maxExpirationSeconds"), s)...)
	return append(errs, stub(path.Child("stubPKCS10Request"), s.StubPKCS10Request)...)
}

func podAnnotations(path *field.Path, all map[string]string) field.ErrorList {
	var errs field.ErrorList
	for key := range all {
		errs = append(errs, validation.IsDomainPrefixedKey(path, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(all) != nil {
		errs = append(errs, field.TooLong(path, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}

func podLifetime(path *field.Path, s *v1.PodCertificateRequestSpec) field.ErrorList {
	most := int32(mostPodSeconds)
	// Signers of Kubernetes itself make none for more than a day.
	if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		most = podSeconds
	}
	switch n := s.MaxExpirationSeconds; {
	case n == nil:
		return field.ErrorList{field.Required(path, "must be set")}
	case *n < leastPodSeconds || *n > most:
		return field.ErrorList{field.Invalid(path, *n, fmt.Sprintf("must be in the range [%d, %d]", leastPodSeconds, most))}
	}
	return nil
}

// stub holds what the key has signed to its rules. What else stands in it is nobody's business but the signer's.
func stub(path *field.Path, der []byte) field.ErrorList {
	if len(der) > maxStub {
		return field.ErrorList{field.TooLong(path, "", maxStub)}
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	why := ""
	switch key := r.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			why = "elliptic public keys must use curve P256, P384, or P521"
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			why = "RSA keys must have modulus size 3072 or 4096"
		}
	default:
		why = "unknown public key type; supported types are Ed25519, ECDSA, and RSA"
	}
	if why == "" && r.CheckSignature() != nil {
		why = "invalid signature"
	}
	if why != "" {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, why)}
	}
	return nil
}

// ValidatePodRequestUpdate holds a changed request for a certificate of a pod to its rules: what is asked for stays.
func ValidatePodRequestUpdate(o, old *v1.PodCertificateRequest) field.ErrorList {
	return append(check.MetaUpdate(o, old), check.Immutable(field.NewPath("spec"), o.Spec, old.Spec)...)
}

// ValidatePodRequestStatus holds what a signer has answered to its rules: it answers once, with a certificate or why
// there is none.
func ValidatePodRequestStatus(o, old *v1.PodCertificateRequest) field.ErrorList {
	return podAnswer(o, old, time.Now())
}

func podAnswer(o, old *v1.PodCertificateRequest, now time.Time) field.ErrorList {
	path := field.NewPath("status")
	errs := append(check.MetaUpdate(o, old), podConditions(path.Child("conditions"), o.Status.Conditions)...)
	if len(errs) > 0 || equality.Semantic.DeepEqual(o.Status, old.Status) {
		return errs
	}
	if len(old.Status.Conditions) > 0 {
		return append(errs, field.Invalid(path, field.OmitValueType{}, "immutable after PodCertificateRequest is issued, denied, or failed"))
	}
	if len(o.Status.Conditions) == 0 {
		return append(errs, field.Invalid(path, field.OmitValueType{}, "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""))
	}
	if o.Status.Conditions[0].Type == v1.PodCertificateRequestConditionTypeIssued {
		return append(errs, issued(path, o, now)...)
	}
	if !equality.Semantic.DeepEqual(o.Status, v1.PodCertificateRequestStatus{Conditions: o.Status.Conditions}) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest"))
	}
	return errs
}

func podConditions(path *field.Path, all []metav1.Condition) field.ErrorList {
	var errs field.ErrorList
	for i, c := range all {
		at := path.Index(i)
		errs = append(errs, check.Supported(at.Child("type"), c.Type, v1.PodCertificateRequestConditionTypeIssued,
			v1.PodCertificateRequestConditionTypeDenied, v1.PodCertificateRequestConditionTypeFailed)...)
		errs = append(errs, check.Supported(at.Child("status"), c.Status, metav1.ConditionTrue)...)
		if i > 0 {
			errs = append(errs, field.Invalid(at.Child("type"), c.Type,
				"There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\""))
		}
	}
	return append(errs, metavalidation.ValidateConditions(all, path)...)
}

// issued holds a certificate to its rules: it is of the key of the request, and as long as its signer says.
func issued(path *field.Path, o *v1.PodCertificateRequest, now time.Time) field.ErrorList {
	s, at := &o.Status, path.Child("certificateChain")
	if len(s.CertificateChain) > maxChain {
		return field.ErrorList{field.TooLong(at, "", maxChain)}
	}
	var leaf *x509.Certificate
	for rest := []byte(s.CertificateChain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")}
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "a certificate of the chain does not parse as valid X.509")}
		}
		if leaf == nil {
			leaf = c
		}
	}
	if leaf == nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "issued certificate chain must contain at least one certificate")}
	}
	errs := leafNames(at, leaf)
	r, err := x509.ParseCertificateRequest(o.Spec.StubPKCS10Request)
	if err != nil {
		return append(errs, field.Invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR"))
	}
	if key, ok := r.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && !key.Equal(leaf.PublicKey) {
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "leaf certificate was not issued to the requested public key"))
	}
	return append(errs, podTimes(path, o, leaf, now)...)
}

// leafNames holds the names in a certificate to the rules that clients have of them.
func leafNames(path *field.Path, leaf *x509.Certificate) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" || strings.Contains(name, "..") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(path, name, "leaf certificate should not contain a DNSName that is empty or has an empty part"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(path, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

// podTimes holds the times of a certificate to their rules: they are those of the certificate, which lives for an hour
// at least and as long as was asked for at most.
func podTimes(path *field.Path, o *v1.PodCertificateRequest, leaf *x509.Certificate, now time.Time) field.ErrorList {
	s := &o.Status
	var errs field.ErrorList
	for _, one := range []struct {
		name string
		at   *metav1.Time
	}{{"notBefore", s.NotBefore}, {"notAfter", s.NotAfter}, {"beginRefreshAt", s.BeginRefreshAt}} {
		if one.at == nil {
			errs = append(errs, field.Required(path.Child(one.name), "must be present and consistent with the issued certificate"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	wrong := func(name string, t *metav1.Time, why string) {
		errs = append(errs, field.Invalid(path.Child(name), t.Time, why))
	}
	if !s.NotBefore.Time.Equal(leaf.NotBefore) {
		wrong("notBefore", s.NotBefore, "must be set to the NotBefore time encoded in the leaf certificate")
	} else if d := s.NotBefore.Sub(now); d <= -skew || d >= skew {
		wrong("notBefore", s.NotBefore, "must be set to within 5 minutes of kube-apiserver's current time")
	}
	if !s.NotAfter.Time.Equal(leaf.NotAfter) {
		wrong("notAfter", s.NotAfter, "must be set to the NotAfter time encoded in the leaf certificate")
	}
	life, most := leaf.NotAfter.Sub(leaf.NotBefore), podSeconds*time.Second
	if o.Spec.MaxExpirationSeconds != nil {
		most = time.Duration(*o.Spec.MaxExpirationSeconds) * time.Second
	}
	switch chain := path.Child("certificateChain"); {
	case life < leastPodSeconds*time.Second:
		errs = append(errs, field.Invalid(chain, life.String(), "leaf certificate lifetime must be >= 1 hour"))
	case life > most:
		errs = append(errs, field.Invalid(chain, life.String(), fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%s)", most)))
	}
	if s.BeginRefreshAt.Time.Before(s.NotBefore.Add(grace)) {
		wrong("beginRefreshAt", s.BeginRefreshAt, "must be at least 10 minutes after status.notBefore")
	}
	if s.BeginRefreshAt.Time.After(s.NotAfter.Add(-grace)) {
		wrong("beginRefreshAt", s.BeginRefreshAt, "must be at least 10 minutes before status.notAfter")
	}
	return errs
}
