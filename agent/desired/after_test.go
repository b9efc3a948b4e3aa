package desired

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAfter(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "[]",
		"db":                           "[ns/db-node runs]",
		"other/db-node=Ready, ns/b":    "[other/db-node is ready ns/b-node runs]",
		"db=Running":                   "!",
		"a/b/c":                        "!",
		"/b":                           "!",
		"a/":                           "!",
		"db,":                          "!",
		"web":                          "!",
		"../../etc/passwd":             "!",
		"kube-system/a.b.c-node=Ready": "[kube-system/a.b.c-node is ready]",
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-node", Annotations: map[string]string{AnnotationAfter: text}}}
		pod.Spec.NodeName = "node"
		got, err := After(pod)
		s := fmt.Sprint(got)
		if err != nil {
			s = "!"
		}
		if s != want {
			t.Errorf("%q: %s (%v), want %s", text, s, err, want)
		}
	}
}
