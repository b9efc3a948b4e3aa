package apiserver

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-node/berth/control/pki"
)

// TestTellTrust tells of the authorities, and looks after nothing else that every cluster has: a start has just made
// all of that.
func TestTellTrust(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	store, err := pki.Open(t.TempDir(), pki.Options{Hosts: []string{"127.0.0.1"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	authorities := func(name string) *dynamiccertificates.DynamicFileCAContent {
		c, err := dynamiccertificates.NewDynamicCAContentFromFile(name, store.TrustPath(name))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	client := fake.NewClientset()
	s := &shared{
		options: Options{PKI: store, Log: log}, client: client, trusted: make(changes, 1),
		clientCA: authorities(pki.ClusterAuthority), proxyCA: authorities(pki.FrontProxyAuthority),
	}
	s.tellTrust(t.Context())
	for _, a := range client.Actions() {
		if a.GetResource().Resource != "configmaps" {
			t.Errorf("it does %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	has, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(store.TrustPath(pki.ClusterAuthority))
	if err != nil || has.Data["client-ca-file"] != string(want) {
		t.Errorf("clients are verified with %q, %v", has.Data["client-ca-file"], err)
	}
}

// TestRange has a server start whose ranges are those of the cluster, also when somebody has added another family, and
// not with other ones.
func TestRange(t *testing.T) {
	for _, c := range []struct {
		cluster []string
		right   bool
	}{
		{nil, true},
		{[]string{"10.96.0.0/16"}, true},
		{[]string{"10.96.0.0/16", "fd00::/112"}, true},
		{[]string{"10.97.0.0/16"}, false},
		{[]string{"fd00::/112", "10.96.0.0/16"}, false},
	} {
		client := fake.NewClientset()
		if c.cluster != nil {
			o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: apiName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: c.cluster}}
			client = fake.NewClientset(o)
		}
		err := ensureRange(t.Context(), client, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
		if (err == nil) != c.right {
			t.Errorf("the cluster has %v: %v", c.cluster, err)
		}
	}
}
