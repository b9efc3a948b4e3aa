package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestOtherAnswers has a server that answers each call with something else than what it is asked for, which is an
// error of that call: none of it is an object with nothing in it.
func TestOtherAnswers(t *testing.T) {
	text := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	c, err := NewClient(&rest.Config{Host: server.URL, QPS: -1, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	res, key := corev1.SchemeGroupVersion.WithResource("secrets"), types.NamespacedName{Namespace: "n", Name: "s"}
	is := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	calls := map[string]func(into *corev1.Secret) error{
		"get":    func(into *corev1.Secret) error { return c.Get(t.Context(), res, key, into) },
		"create": func(into *corev1.Secret) error { return c.Create(t.Context(), res, is, into) },
		"update": func(into *corev1.Secret) error { return c.Update(t.Context(), res, is, into) },
		"patch": func(into *corev1.Secret) error {
			return c.Patch(t.Context(), res, key, types.MergePatchType, []byte("{}"), into)
		},
		"patch status": func(into *corev1.Secret) error {
			return c.Patch(t.Context(), res, key, types.MergePatchType, []byte("{}"), into, "status")
		},
	}
	const secret = `{"kind":"Secret","apiVersion":"v1","metadata":`
	for _, other := range []string{
		`{}`, `{"ok":true}`, `{"kind":"Secret","apiVersion":"v1"}`, secret + `{"name":"s","namespace":"n"}}`,
		secret + `{"name":"t","namespace":"n","uid":"u"}}`, secret + `{"name":"s","namespace":"m","uid":"u"}}`,
		`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"s","namespace":"n","uid":"u"}}`,
		`{"kind":"Status","apiVersion":"v1","status":"Success"}`, `{"kind":"SecretList","apiVersion":"v1","metadata":{},"items":[]}`,
	} {
		text = other
		for what, call := range calls {
			if err := call(new(corev1.Secret)); !apierrors.IsInternalError(err) {
				t.Errorf("%s, answered with %s: %v", what, other, err)
			}
		}
	}
	text = secret + `{"name":"s","namespace":"n","uid":"u"},"data":{"k":"dg=="}}`
	for what, call := range calls {
		var got corev1.Secret
		if err := call(&got); err != nil || string(got.Data["k"]) != "v" {
			t.Errorf("%s: %v, %v", what, got.Data, err)
		}
	}
	is.Name, is.GenerateName = "", "s-"
	if err := c.Create(t.Context(), res, is, new(corev1.Secret)); err != nil {
		t.Errorf("a name of the server: %v", err)
	}
	text = secret + `{"namespace":"n","uid":"u"}}`
	if err := c.Create(t.Context(), res, is, new(corev1.Secret)); err == nil {
		t.Error("an object without a name is one")
	}
}
