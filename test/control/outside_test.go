package control

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestProxiesStayOutside has a node write what it likes as its address and its kubelet's port, as one that somebody has
// taken over may: by its proxy nobody comes to this machine's own services, nor to the API with the rights of its
// server.
func TestProxiesStayOutside(t *testing.T) {
	t.Parallel()
	p := share(t)
	name := p.named("taken")
	own := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s is asked for", r.URL) }))
	t.Cleanup(own.Close)
	_, inner, err := net.SplitHostPort(own.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(p.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(server.Port())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := p.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.away(t, name) })
	for _, host := range []string{"localhost", "127.0.0.1", server.Hostname()} {
		patch := fmt.Sprintf(`{"status":{"addresses":[{"type":"Hostname","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, host, port)
		if _, err := p.client.CoreV1().Nodes().PatchStatus(t.Context(), name, []byte(patch)); err != nil {
			t.Fatal(err)
		}
		for path, why := range map[string]string{
			"/api/v1/nodes/" + name + "/proxy/api/v1/namespaces/kube-system/secrets": "it is an API server",
			"/api/v1/nodes/" + name + ":" + inner + "/proxy/":                        "address not allowed",
		} {
			text, err := p.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
			if err == nil || !strings.Contains(string(text)+err.Error(), why) {
				t.Errorf("%s with %s: %.200s, %v", path, host, text, err)
			}
		}
	}
}
