package object

import (
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Expect notes that all objects of a kind are going to be told, which [Store.Listed] says is done: until then one that
// is not here may be there.
func (s *Store) Expect(k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected == nil {
		s.expected = map[Kind]bool{}
	}
	s.expected[k] = true
}

// Listed notes that every object of a kind that there was has been told.
func (s *Store) Listed(k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expected, k)
}

// ServicesListed says whether all Services are known, which containers wait for.
func (s *Store) ServicesListed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return !s.expected[Service]
}

// TrustBundle fails with [NotFound].
func (s *Store) TrustBundle(name string) (*certificatesv1.ClusterTrustBundle, error) {
	return get[*certificatesv1.ClusterTrustBundle](s, ClusterTrustBundle, "", name)
}

// TrustBundles are those of a signer whose labels a selector matches, by name.
func (s *Store) TrustBundles(signer string, which labels.Selector) []*certificatesv1.ClusterTrustBundle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*certificatesv1.ClusterTrustBundle
	for _, o := range s.objects {
		b, ok := o.(*certificatesv1.ClusterTrustBundle)
		if ok && b.Spec.SignerName == signer && which.Matches(labels.Set(b.Labels)) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *certificatesv1.ClusterTrustBundle) int { return strings.Compare(a.Name, b.Name) })
	return out
}
