package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func patchOf(body, kind string) (*patch, error) {
	r := httptest.NewRequest(http.MethodPatch, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	return parsePatch(r, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}})
}

func TestPatch(t *testing.T) {
	for _, c := range []struct {
		body, kind, says string
		code             int
	}{
		{`{}`, "", "is of the type " + strategicMerge, http.StatusUnsupportedMediaType},
		{`[]`, "application/json-patch+json", "is of the type " + strategicMerge, http.StatusUnsupportedMediaType},
		{``, strategicMerge, "read patch", http.StatusBadRequest},
		{
			`{"spec":{"ephemeralContainers":[{"resources":{"limits":{"cpu":"1e-999999999"}}}]}}`, strategicMerge,
			"spec.ephemeralContainers[0].resources.limits[cpu]: Invalid value", http.StatusBadRequest,
		},
		{`[]`, strategicMerge, "read patch", http.StatusBadRequest},
		{
			`{"spec": {"nodeName": "x"}}`, strategicMerge, `unknown field "spec.nodeName", which cannot be changed here`,
			http.StatusBadRequest,
		},
		{`{"spec": {}, "spec": {}}`, strategicMerge, `duplicate field "spec"`, http.StatusBadRequest},
		{`{"metadata": {"uid": "u2"}}`, strategicMerge, "metadata.uid: pod web has the UID u1 now", http.StatusConflict},
		{`{"status": {"conditions": "x"}}`, strategicMerge, "read patch", http.StatusBadRequest},
		{`"` + strings.Repeat("x", maxPatch) + `"`, strategicMerge, "too large", http.StatusBadRequest},
		{
			strings.Repeat(`{"spec":`, 20000) + `1` + strings.Repeat("}", 20000), strategicMerge, "read patch",
			http.StatusBadRequest,
		},
	} {
		p, err := patchOf(c.body, c.kind)
		f, ok := errors.AsType[*failure](err)
		if !ok || f.code != c.code || !strings.Contains(f.msg, c.says) {
			t.Errorf("%.60s of type %q: %+v, %.200v; want %d with %s", c.body, c.kind, p, err, c.code, c.says)
		}
	}
	p, err := patchOf(`{"metadata":{"uid":"u1"},"spec":{"$setElementOrder/ephemeralContainers":[{"name":"a"}],"ephemeralContainers":[{"name":"a","image":"i"}]}}`, strategicMerge+"; charset=utf-8")
	if err != nil || len(p.Spec.EphemeralContainers) != 1 || p.Spec.EphemeralContainers[0].Image != "i" {
		t.Errorf("%+v, %v", p, err)
	}
}

// FuzzPatch reads what may be any patch: one that is taken is for this very pod and says the same when it is written
// down.
func FuzzPatch(f *testing.F) {
	for _, s := range []string{
		`{"metadata":{"uid":"u1"},"spec":{"$setElementOrder/ephemeralContainers":[{"name":"a"}],"ephemeralContainers":[{"name":"a","image":"i"}]}}`,
		`{"status":{"conditions":[{"type":"example.com/in","status":"True"},{"$patch":"delete","type":"x"}],"$setElementOrder/conditions":[]}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"u2"}}`, `{"spec":null}`, `{"spec":{"ephemeralContainers":[null]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := patchOf(string(body), strategicMerge)
		if err != nil {
			if _, ok := errors.AsType[*failure](err); !ok {
				t.Errorf("%q: %v has no code", body, err)
			}
			return
		}
		if p.Metadata.UID != "" && p.Metadata.UID != types.UID("u1") {
			t.Errorf("%q is for another pod", body)
		}
		first, err := json.Marshal(p)
		if err != nil {
			t.Errorf("%q cannot be said again: %v", body, err)
			return
		}
		again, err := patchOf(string(first), strategicMerge)
		if err != nil {
			t.Errorf("%q, said as %q: %v", body, first, err)
			return
		}
		if second, err := json.Marshal(again); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%q is taken as %q and then as %q (%v)", body, first, second, err)
		}
	})
}
