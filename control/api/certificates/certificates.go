// Package certificates has the rules of requests for certificates and of bundles of trusted ones.
package certificates

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/certificates/v1"
	v1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const (
	minExpiration = 600 // seconds
	maxBundle     = 1 << 20
)

var usages = []v1.KeyUsage{
	v1.UsageSigning, v1.UsageDigitalSignature, v1.UsageContentCommitment, v1.UsageKeyEncipherment, v1.UsageKeyAgreement,
	v1.UsageDataEncipherment, v1.UsageCertSign, v1.UsageCRLSign, v1.UsageEncipherOnly, v1.UsageDecipherOnly, v1.UsageAny,
	v1.UsageServerAuth, v1.UsageClientAuth, v1.UsageCodeSigning, v1.UsageEmailProtection, v1.UsageSMIME, v1.UsageIPsecEndSystem,
	v1.UsageIPsecTunnel, v1.UsageIPsecUser, v1.UsageTimestamping, v1.UsageOCSPSigning, v1.UsageMicrosoftSGC, v1.UsageNetscapeSGC,
}

func names(name string, _ bool) []string { return content.IsPathSegmentName(name) }

// ValidateRequest holds a new request to its rules: it is one, signed by its own key.
func ValidateRequest(o *v1.CertificateSigningRequest) field.ErrorList {
	errs := append(check.Meta(o, false, names), request(o)...)
	return append(errs, status(o)...)
}

// status holds what signers and approvers have written to its rules.
func status(o *v1.CertificateSigningRequest) field.ErrorList {
	errs := conditions(o)
	if len(o.Status.Certificate) == 0 {
		return errs
	}
	path := field.NewPath("status", "certificate")
	n := 0
	for rest := o.Status.Certificate; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return append(errs, field.Invalid(path, "<certificate data>", "only CERTIFICATE PEM blocks are allowed"))
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return append(errs, field.Invalid(path, "<certificate data>", err.Error()))
		}
	}
	if n == 0 {
		errs = append(errs, field.Invalid(path, "<certificate data>", "must contain at least one CERTIFICATE PEM block"))
	}
	return errs
}

func request(o *v1.CertificateSigningRequest) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if _, err := Parse(o.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(path.Child("request"), "", err.Error()))
	}
	if len(o.Spec.Usages) == 0 {
		errs = append(errs, field.Required(path.Child("usages"), ""))
	}
	seen := sets.New[v1.KeyUsage]()
	for i, u := range o.Spec.Usages {
		errs = append(errs, check.Supported(path.Child("usages").Index(i), u, usages...)...)
		if seen.Has(u) {
			errs = append(errs, field.Duplicate(path.Child("usages").Index(i), u))
		}
		seen.Insert(u)
	}
	errs = append(errs, signerName(path.Child("signerName"), o.Spec.SignerName)...)
	if e := o.Spec.ExpirationSeconds; e != nil && *e < minExpiration {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *e, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// maxBits bounds RSA keys: a signature is looked at in a time that grows with the square of their bits, hours for those
// that fill a request. Who has one of more could not use it: TLS of Go takes none.
const maxBits = 8192

// Parse reads a PKCS #10 request, and looks at its signature.
func Parse(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if key, is := r.PublicKey.(*rsa.PublicKey); is && key.N.BitLen() > maxBits {
		return nil, fmt.Errorf("RSA keys must have at most %d bits", maxBits)
	}
	return r, r.CheckSignature()
}

func conditions(o *v1.CertificateSigningRequest) field.ErrorList {
	path := field.NewPath("status", "conditions")
	var errs field.ErrorList
	seen := sets.New[v1.RequestConditionType]()
	for i, c := range o.Status.Conditions {
		at := path.Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		decided := c.Type == v1.CertificateApproved || c.Type == v1.CertificateDenied || c.Type == v1.CertificateFailed
		switch {
		case c.Status == "":
			errs = append(errs, field.Required(at.Child("status"), ""))
		case decided:
			errs = append(errs, check.Supported(at.Child("status"), c.Status, "True")...)
		default:
			errs = append(errs, check.Supported(at.Child("status"), c.Status, "True", "False", "Unknown")...)
		}
		if seen.Has(c.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen.Insert(c.Type)
	}
	if seen.HasAll(v1.CertificateApproved, v1.CertificateDenied) {
		errs = append(errs, field.Invalid(path, v1.CertificateDenied, "Approved and Denied conditions are mutually exclusive"))
	}
	return errs
}

// ValidateRequestUpdate holds a changed request to its rules: neither decision nor certificate comes or goes with it.
func ValidateRequestUpdate(o, old *v1.CertificateSigningRequest) field.ErrorList {
	errs := append(changed(o, old), decisions(o, old)...)
	if !bytes.Equal(o.Status.Certificate, old.Status.Certificate) {
		errs = append(errs, field.Forbidden(field.NewPath("status", "certificate"), "updates may not set certificate content"))
	}
	return errs
}

// ValidateRequestApproval holds what an approver has changed to its rules: a decision is taken, and none is taken back.
func ValidateRequestApproval(o, old *v1.CertificateSigningRequest) field.ErrorList {
	errs := changed(o, old)
	if !bytes.Equal(o.Status.Certificate, old.Status.Certificate) {
		errs = append(errs, field.Forbidden(field.NewPath("status", "certificate"), "updates may not set certificate content"))
	}
	return errs
}

// ValidateRequestStatus holds what a signer has changed to its rules: a certificate comes once, and the decision stays.
func ValidateRequestStatus(o, old *v1.CertificateSigningRequest) field.ErrorList {
	errs := append(changed(o, old), decisions(o, old)...)
	if len(old.Status.Certificate) > 0 && !bytes.Equal(o.Status.Certificate, old.Status.Certificate) {
		errs = append(errs, field.Forbidden(field.NewPath("status", "certificate"), "updates may not modify existing certificate content"))
	}
	return errs
}

// changed is what holds for whoever changes a request: what was decided stays.
func changed(o, old *v1.CertificateSigningRequest) field.ErrorList {
	errs := append(check.Meta(o, false, names), request(o)...)
	errs = append(errs, status(o)...)
	errs = append(errs, check.MetaUpdate(o, old)...)
	for _, t := range []v1.RequestConditionType{v1.CertificateApproved, v1.CertificateDenied, v1.CertificateFailed} {
		if len(of(o, t)) < len(of(old, t)) {
			errs = append(errs, field.Forbidden(field.NewPath("status", "conditions"), fmt.Sprintf("updates may not remove a condition of type %q", t)))
		}
	}
	return errs
}

// decisions holds those to their rules who decide nothing.
func decisions(o, old *v1.CertificateSigningRequest) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	for _, t := range []v1.RequestConditionType{v1.CertificateApproved, v1.CertificateDenied} {
		now, was := of(o, t), of(old, t)
		switch {
		case len(now) > len(was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not add a condition of type %q", t)))
		case len(now) == len(was) && !equality.Semantic.DeepEqual(now, was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not modify a condition of type %q", t)))
		}
	}
	return errs
}

func of(o *v1.CertificateSigningRequest, t v1.RequestConditionType) []v1.CertificateSigningRequestCondition {
	var all []v1.CertificateSigningRequestCondition
	for _, c := range o.Status.Conditions {
		if c.Type == t {
			all = append(all, c)
		}
	}
	return all
}

// signerName is a domain and a path in it.
func signerName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	for _, why := range validation.IsDNS1123Subdomain(domain) {
		errs = append(errs, field.Invalid(path, domain, why))
	}
	if len(strings.Split(domain, ".")) < 2 {
		errs = append(errs, field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	// The parts behind the domain are subdomains, too, so that roles can name them.
	for _, why := range validation.IsDNS1123Subdomain(rest) {
		errs = append(errs, field.Invalid(path, rest, why))
	}
	if len(name) > 571 {
		errs = append(errs, field.TooLong(path, name, 571))
	}
	return errs
}

// ValidateBundle holds a new bundle to its rules.
func ValidateBundle(o *v1.ClusterTrustBundle) field.ErrorList {
	return append(check.Meta(o, false, bundleName(o.Spec.SignerName)), bundle(o, "")...)
}

// ValidateOldBundle is [ValidateBundle] for the version before.
func ValidateOldBundle(o *v1beta1.ClusterTrustBundle) field.ErrorList {
	return ValidateBundle(today(o))
}

// ValidateOldBundleUpdate is [ValidateBundleUpdate] for the version before.
func ValidateOldBundleUpdate(o, old *v1beta1.ClusterTrustBundle) field.ErrorList {
	return ValidateBundleUpdate(today(o), today(old))
}

func today(o *v1beta1.ClusterTrustBundle) *v1.ClusterTrustBundle {
	return &v1.ClusterTrustBundle{ObjectMeta: o.ObjectMeta, Spec: v1.ClusterTrustBundleSpec(o.Spec)}
}

// ValidateBundleUpdate holds a changed bundle to its rules: who signs stays.
func ValidateBundleUpdate(o, old *v1.ClusterTrustBundle) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), check.Meta(o, false, bundleName(o.Spec.SignerName))...)
	errs = append(errs, bundle(o, old.Spec.TrustBundle)...)
	return append(errs, check.Immutable(field.NewPath("spec", "signerName"), o.Spec.SignerName, old.Spec.SignerName)...)
}

// bundleName wants the signer in front of a name, and no colon where there is none.
func bundleName(signer string) check.NameRule {
	return func(name string, prefix bool) []string {
		if signer == "" {
			if strings.Contains(name, ":") {
				return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
			}
			return check.SubdomainName(name, prefix)
		}
		want := strings.ReplaceAll(signer, "/", ":") + ":"
		rest, ok := strings.CutPrefix(name, want)
		if !ok {
			return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, want)}
		}
		return check.SubdomainName(rest, prefix)
	}
}

func bundle(o *v1.ClusterTrustBundle, known string) field.ErrorList {
	var errs field.ErrorList
	if o.Spec.SignerName != "" {
		errs = signerName(field.NewPath("spec", "signerName"), o.Spec.SignerName)
	}
	path := field.NewPath("spec", "trustBundle")
	text := o.Spec.TrustBundle
	if text == known && known != "" {
		return errs
	}
	if len(text) > maxBundle {
		return append(errs, field.TooLong(path, "", maxBundle))
	}
	seen := sets.New[string]()
	rest := []byte(text)
	for {
		block, more := pem.Decode(rest)
		if block == nil {
			break
		}
		rest = more
		switch {
		case block.Type != "CERTIFICATE":
			errs = append(errs, field.Invalid(path, "", fmt.Sprintf("a block has type %q and should be CERTIFICATE", block.Type)))
			continue
		case len(block.Headers) > 0:
			errs = append(errs, field.Invalid(path, "", "a block must not have headers"))
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			errs = append(errs, field.Invalid(path, "", "a block does not parse as a certificate: "+err.Error()))
			continue
		}
		if !cert.IsCA || !cert.BasicConstraintsValid {
			errs = append(errs, field.Invalid(path, "", "a certificate is not that of an authority"))
			continue
		}
		if seen.Has(string(block.Bytes)) {
			errs = append(errs, field.Invalid(path, "", "a certificate stands in it twice"))
		}
		seen.Insert(string(block.Bytes))
	}
	if seen.Len() == 0 {
		errs = append(errs, field.Invalid(path, "", "at least one trust anchor must be provided"))
	}
	return errs
}
