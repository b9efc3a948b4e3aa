package apiserver

import (
	"log/slog"
	"os"
	"testing"

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
