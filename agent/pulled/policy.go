package pulled

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Policy says which images on the machine a pod may use only with credentials of its own that were good for the
// registry.
type Policy struct {
	kind     kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	names    []string
	prefixes []string // with the slash at the end
}

// DefaultKind is kubelet's: what was on the machine before is for everybody.
const DefaultKind = string(kubeletv1beta1.NeverVerifyPreloadedImages)

// Kinds are the names of the policies.
func Kinds() []string {
	return []string{
		string(kubeletv1beta1.NeverVerify), string(kubeletv1beta1.NeverVerifyPreloadedImages),
		string(kubeletv1beta1.NeverVerifyAllowlistedImages), string(kubeletv1beta1.AlwaysVerify),
	}
}

// NewPolicy reads a policy. The images that are listed are for NeverVerifyAllowlistedImages only: names with their
// registry and without tag and digest, or what names begin with and "/*".
func NewPolicy(kind string, images []string) (Policy, error) {
	p := Policy{kind: kubeletv1beta1.ImagePullCredentialsVerificationPolicy(kind)}
	if !slices.Contains(Kinds(), kind) {
		return p, fmt.Errorf("policy %q: must be one of %s", kind, strings.Join(Kinds(), ", "))
	}
	if len(images) > 0 && p.kind != kubeletv1beta1.NeverVerifyAllowlistedImages {
		return p, fmt.Errorf("policy %s has no list of images, only %s has", kind, kubeletv1beta1.NeverVerifyAllowlistedImages)
	}
	var errs []error
	for _, s := range images {
		errs = append(errs, p.add(s))
	}
	return p, errors.Join(errs...)
}

func (p *Policy) add(s string) error {
	prefix, all := strings.CutSuffix(s, "*")
	if all {
		if len(prefix) < 2 || !strings.HasSuffix(prefix, "/") || strings.ContainsAny(prefix, "* \t\n") {
			return fmt.Errorf("image %q: must be a name, or what names begin with and /*", s)
		}
		p.prefixes = append(p.prefixes, prefix)
		return nil
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return fmt.Errorf("image %q: %w", s, err)
	}
	if named.Name() != s {
		return fmt.Errorf("image %q: must be %q, with its registry and without tag and digest", s, named.Name())
	}
	p.names = append(p.names, s)
	return nil
}

// verifies says whether an image that is there may be used only by who has credentials.
func (p *Policy) verifies(name string, byAgent bool) bool {
	switch p.kind {
	case kubeletv1beta1.NeverVerify:
		return false
	case kubeletv1beta1.NeverVerifyPreloadedImages:
		return byAgent
	case kubeletv1beta1.NeverVerifyAllowlistedImages:
		return !slices.Contains(p.names, name) && !slices.ContainsFunc(p.prefixes, func(s string) bool { return strings.HasPrefix(name, s) })
	}
	return true
}
