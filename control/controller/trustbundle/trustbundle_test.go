package trustbundle

import (
	"log/slog"
	"slices"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// text is a bundle that may be replaced.
type text struct {
	mu  sync.Mutex
	now string
}

// CurrentCABundleContent implements [Bundle].
func (t *text) CurrentCABundleContent() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return []byte(t.now)
}

// TestName is by the text alone, in the form that Kubernetes has for it.
func TestName(t *testing.T) {
	const empty = "kubernetes.io:kube-apiserver-serving:e3b0c44298fc1c149afbf4c8" // the SHA-256 of nothing
	if got := nameOf(nil); got != empty {
		t.Errorf("it is %s", got)
	}
}

// TestSync publishes the bundle, replaces what somebody has changed, and removes what is not of the authorities that
// are trusted now.
func TestSync(t *testing.T) {
	stale := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:stale", UID: "s"}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: "old"},
	}
	changed := stale.DeepCopy()
	changed.Name = nameOf([]byte("new"))
	client := fake.NewClientset(stale, changed)
	i := informers.NewSharedInformerFactory(client, 0).Certificates().V1().ClusterTrustBundles()
	for _, o := range []*certificatesv1.ClusterTrustBundle{stale, changed} {
		if err := i.Informer().GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	p := &publisher{client, i.Lister(), &text{now: "new"}}
	names := func() (all []string) {
		t.Helper()
		list, err := client.CertificatesV1().ClusterTrustBundles().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			all = append(all, o.Name+"="+o.Spec.TrustBundle)
		}
		return all
	}
	if _, err := p.sync(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{changed.Name + "=new"}) {
		t.Errorf("there are %q", got)
	}
	if _, err := New(client, client, p.bundle, func(func()) {}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
}
