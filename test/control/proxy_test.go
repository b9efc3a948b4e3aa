package control

import (
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

// TestProxyOfNoPath has a browser read what a pod serves without a path: it is sent to the one with a slash, below
// which the pages are that this one tells of.
func TestProxyOfNoPath(t *testing.T) {
	t.Parallel()
	p := share(t)
	runs(t, p.client, p.ns, "web", "192.0.2.7", p.named("gone"), nil, true)
	transport, err := rest.TransportFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		request, err := http.NewRequestWithContext(t.Context(), method,
			p.config.Host+"/api/v1/namespaces/"+p.ns+"/pods/web/proxy?a=b", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		want := "/api/v1/namespaces/" + p.ns + "/pods/web/proxy/?a=b"
		if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusMovedPermanently || to != want {
			t.Errorf("%s: %s to %q, want %q", method, answer.Status, to, want)
		}
	}
}
