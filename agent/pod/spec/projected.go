package spec

import (
	"bytes"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// privateMode is that of files which are nobody's business but the pod's.
const privateMode = 0o600

// addPrivate adds a file that only the pod's containers may read, where they are one user or a group; that group gets
// it when the file is written. Else each user of the pod has to be able to read it, whoever that is.
func (f *files) addPrivate(path string, data []byte, user *int64) {
	if user == nil {
		user = f.user
	}
	if user == nil {
		user = onlyUser(f.pod)
	}
	mode := f.mode
	if s := f.pod.Spec.SecurityContext; user != nil || s != nil && s.FSGroup != nil {
		private := int32(privateMode)
		mode = &private
	}
	f.add(path, data, mode, user)
}

// onlyUser is the user that all containers of a pod are to run as; nil: there is none that is known.
func onlyUser(pod *corev1.Pod) *int64 {
	var one *int64
	all := func(c *corev1.SecurityContext) bool {
		var user *int64
		if s := pod.Spec.SecurityContext; s != nil {
			user = s.RunAsUser
		}
		if c != nil && c.RunAsUser != nil {
			user = c.RunAsUser
		}
		if user == nil || one != nil && *one != *user {
			return false
		}
		one = user
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !all(list[i].SecurityContext) {
				return nil
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if !all(pod.Spec.EphemeralContainers[i].SecurityContext) {
			return nil
		}
	}
	return one
}

func (f *files) token(s *corev1.ServiceAccountTokenProjection, source int) error {
	text, ok := f.issued.Tokens[source]
	if !ok {
		return fmt.Errorf("%s: nobody here makes tokens of service accounts", s.Path)
	}
	f.addPrivate(s.Path, []byte(text), s.User)
	return nil
}

// certificate adds the key and the chain that signers were asked for, in one file or in two.
func (f *files) certificate(s *corev1.PodCertificateProjection, source int) error {
	c, ok := f.issued.Certificates[source]
	if !ok {
		return fmt.Errorf("signer %s: nobody here asks for certificates of pods", s.SignerName)
	}
	for _, one := range []struct {
		path string
		data []byte
	}{
		{s.CredentialBundlePath, slices.Concat(c.Key, c.Chain)}, {s.KeyPath, c.Key}, {s.CertificateChainPath, c.Chain},
	} {
		if one.path != "" {
			f.addPrivate(one.path, one.data, s.User)
		}
	}
	return nil
}

// maxBundles bounds in bytes what the trust bundles of a source have together. An object has a megabyte.
const maxBundles = 8 << 20

// trustBundle adds the certificates of the bundles that a source names or selects.
func (f *files) trustBundle(s *corev1.ClusterTrustBundleProjection) error {
	var found []*certificatesv1.ClusterTrustBundle
	var missing error
	switch {
	case s.Name != nil:
		b, err := f.objects.TrustBundle(*s.Name)
		if missing = err; err == nil {
			found = append(found, b)
		}
	case s.SignerName != nil:
		which, err := metav1.LabelSelectorAsSelector(s.LabelSelector) // without one it selects nothing
		if err != nil {
			return fmt.Errorf("%s: labelSelector: %w", s.Path, err)
		}
		if found = f.objects.TrustBundles(*s.SignerName, which); len(found) == 0 {
			missing = fmt.Errorf("no clustertrustbundle of signer %q matches %q", *s.SignerName, which)
		}
	}
	if missing != nil && !isTrue(s.Optional) {
		return fmt.Errorf("%s: %w", s.Path, missing)
	}
	data, err := anchors(found, string(f.pod.UID))
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	f.addPrivate(s.Path, data, s.User)
	return nil
}

// anchors are the certificates of bundles, each once and without anything else. Their order is one that nobody can rely
// on, another one for each pod, and stays the same for a pod, whose file would change for nothing.
func anchors(bundles []*certificatesv1.ClusterTrustBundle, salt string) ([]byte, error) {
	size := 0
	for _, b := range bundles {
		if size += len(b.Spec.TrustBundle); size > maxBundles {
			return nil, fmt.Errorf("its trust bundles have more than %d bytes", maxBundles)
		}
	}
	type place [sha256.Size]byte
	certificates := map[place][]byte{}
	var order []place
	for _, b := range bundles {
		rest := []byte(b.Spec.TrustBundle)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type != "CERTIFICATE" {
				continue
			}
			at := place(sha256.Sum256(append([]byte(salt), block.Bytes...)))
			if certificates[at] == nil {
				certificates[at] = pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})
				order = append(order, at)
			}
		}
	}
	slices.SortFunc(order, func(a, b place) int { return bytes.Compare(a[:], b[:]) })
	var out bytes.Buffer
	for _, at := range order {
		out.Write(certificates[at])
	}
	return out.Bytes(), nil
}
