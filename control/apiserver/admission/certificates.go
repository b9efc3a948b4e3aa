package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// maySign tells whether a user has a verb on a signer, by its name or by all of its domain (example.org/*).
func maySign(ctx context.Context, g given, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := g.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

const (
	requests    = "certificatesigningrequests"
	podRequests = "podcertificaterequests"
)

// newCertificateApproval wants who approves a request, or denies it, to have the verb approve on its signer.
func newCertificateApproval(g given) (checks, error) {
	return checks{
		operations: onUpdate(), resources: []string{requests + "/approval." + certificatesv1.GroupName},
		validate: onChange(func(ctx context.Context, a admission.Attributes, _, old *certificatesv1.CertificateSigningRequest) error {
			if !maySign(ctx, g, a.GetUserInfo(), "approve", old.Spec.SignerName) {
				return forbid(a, "user not permitted to approve requests with signerName %q", old.Spec.SignerName)
			}
			return nil
		}),
	}, nil
}

// newCertificateSigning wants who writes the certificate of a request, or that it failed, to have the verb sign. Who
// answers a request for a certificate of a pod needs it, too.
func newCertificateSigning(g given) (checks, error) {
	forPods := onChange(func(ctx context.Context, a admission.Attributes, o, old *certificatesv1.PodCertificateRequest) error {
		if equality.Semantic.DeepEqual(o.Status, old.Status) || maySign(ctx, g, a.GetUserInfo(), "sign", old.Spec.SignerName) {
			return nil
		}
		return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
	})
	ofCluster := signing(g)
	return checks{
		operations: onUpdate(), resources: []string{requests + "/status." + certificatesv1.GroupName, podRequests + "/status." + certificatesv1.GroupName},
		validate: func(ctx context.Context, a admission.Attributes) error {
			if a.GetResource().Resource == podRequests {
				return forPods(ctx, a)
			}
			return ofCluster(ctx, a)
		},
	}, nil
}

func signing(g given) func(context.Context, admission.Attributes) error {
	return onChange(func(ctx context.Context, a admission.Attributes, o, old *certificatesv1.CertificateSigningRequest) error {
		if equality.Semantic.DeepEqual(o.Status.Certificate, old.Status.Certificate) && equality.Semantic.DeepEqual(o.Status.Conditions, old.Status.Conditions) {
			return nil
		}
		if !maySign(ctx, g, a.GetUserInfo(), "sign", old.Spec.SignerName) {
			return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
		}
		return nil
	})
}

// newTrustBundleAttest wants who writes the bundle of a signer to have the verb attest on it.
func newTrustBundleAttest(g given) (checks, error) {
	return checks{
		operations: onWrite(), resources: []string{"clustertrustbundles." + certificatesv1.GroupName},
		validate: func(ctx context.Context, a admission.Attributes) error {
			signer, ok := bundleSigner(a)
			if !ok {
				return wrongType(a, a.GetObject())
			}
			if signer != "" && !maySign(ctx, g, a.GetUserInfo(), "attest", signer) {
				return forbid(a, "user not permitted to attest for signerName %q", signer)
			}
			return nil
		},
	}, nil
}

func bundleSigner(a admission.Attributes) (string, bool) {
	switch o := a.GetObject().(type) {
	case *certificatesv1.ClusterTrustBundle:
		return o.Spec.SignerName, true
	case *certificatesv1beta1.ClusterTrustBundle:
		return o.Spec.SignerName, true
	}
	return "", false
}

// newSubjectRestriction refuses a certificate of a client that would be of system:masters, which no role can take back.
func newSubjectRestriction(given) (checks, error) {
	return checks{
		operations: onCreate(), resources: []string{requests + "." + certificatesv1.GroupName},
		validate: on(func(_ context.Context, a admission.Attributes, o *certificatesv1.CertificateSigningRequest) error {
			if o.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
				return nil
			}
			request, err := parseRequest(o.Spec.Request)
			if err != nil {
				return forbid(a, "failed to parse CSR: %w", err)
			}
			if slices.Contains(request.Subject.Organization, user.SystemPrivilegedGroup) {
				return forbid(a, "use of %s signer with %s group is not allowed", o.Spec.SignerName, user.SystemPrivilegedGroup)
			}
			return nil
		}),
	}, nil
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("it is no PEM block of type CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
