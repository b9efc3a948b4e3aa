package auth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// endless is a service whose answers have no end but after far more than any may have. It tells what it could say.
func endless(t *testing.T) (service *httptest.Server, most int, said <-chan int) {
	t.Helper()
	most = 20 * maxAnswer
	heard := make(chan int, 10)
	service = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := 0
		defer func() { heard <- n }()
		w.Header().Set("Content-Type", "application/json")
		for text := `{"kind":"`; n < most; text = strings.Repeat("x", 64<<10) {
			m, err := w.Write([]byte(text))
			if n += m; err != nil {
				return
			}
		}
	}))
	t.Cleanup(service.Close)
	return service, most, heard
}

// TestEndlessWebhooks has webhooks of tokens and of admission whose answers have no end.
func TestEndlessWebhooks(t *testing.T) {
	service, most, said := endless(t)
	a, _ := start(t, Options{AuthenticationWebhook: kubeconfig(t, service)})
	if _, ok, err := a.Authenticator().AuthenticateRequest(requestOf("unknown")); ok || err == nil {
		t.Errorf("%v, %v", ok, err)
	}
	if n := <-said; n >= most {
		t.Errorf("%d bytes of what is said of a token are read", n)
	}
	self := &rest.Config{Host: "self"}
	reach := BoundWebhooks(func(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return of }, self)
	given := func() (*rest.Config, error) {
		return &rest.Config{Host: service.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
	}
	found := reach(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(host string) (*rest.Config, error) {
			if host == "self" {
				return self, nil
			}
			return given()
		},
		ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) { return given() },
	})
	for what, reached := range map[string]func() (*rest.Config, error){
		"url":     func() (*rest.Config, error) { return found.ClientConfigFor("hook") },
		"service": func() (*rest.Config, error) { return found.ClientConfigForService("a", "b", 443) },
	} {
		cfg, err := reached()
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Post(service.URL, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		var block [64 << 10]byte
		for err == nil {
			_, err = resp.Body.Read(block[:])
		}
		resp.Body.Close()
		if n := <-said; n >= most || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %d bytes are read: %v", what, n, err)
		}
	}
	if cfg, err := found.ClientConfigFor("self"); err != nil || cfg != self || cfg.WrapTransport != nil {
		t.Errorf("of the API server itself: %+v, %v", cfg, err)
	}
}
