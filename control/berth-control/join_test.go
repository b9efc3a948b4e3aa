package main

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFetchFromWhoHasNotHeard has a member not know of a token at first, and then not of what its holder may read.
func TestFetchFromWhoHasNotHeard(t *testing.T) {
	k := newSealKey()
	sealed, err := k.seal(someBundle(), "abcdef")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: map[string][]byte{keysField: sealed},
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan int, 3)
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusOK} {
		answers <- code
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/namespaces/kube-system/secrets/"+keysName("abcdef")) {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		code := <-answers
		w.WriteHeader(code)
		if code == http.StatusOK {
			_, _ = w.Write(text)
		}
	}))
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	b, err := fetch(t.Context(), strings.TrimPrefix(server.URL, "https://"), authority, "abcdef.0123456789abcdef", k)
	if err != nil || len(b.Etcd) != 1 {
		t.Errorf("got %v, %v", b.Etcd, err)
	}
}
