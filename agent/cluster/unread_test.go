package cluster

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// TestUnread has quantities that take for ever, and what is no object, in both languages: of a watch they become an
// object of metadata alone, and what was asked for by itself is refused.
func TestUnread(t *testing.T) {
	c, err := NewClient(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", ResourceVersion: "7"},
		Spec:       corev1.PodSpec{Overhead: corev1.ResourceList{"cpu": resource.MustParse("777977797779")}},
	}
	for _, info := range c.cfg.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType != "application/json" && info.MediaType != contentProtobuf {
			continue
		}
		d := c.cfg.NegotiatedSerializer.DecoderToVersion(info.Serializer, corev1.SchemeGroupVersion)
		good, err := runtime.Encode(info.Serializer, pod)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := runtime.Decode(d, good); err != nil || o.(*corev1.Pod).Name != "p" {
			t.Errorf("%s: %v, %v", info.MediaType, o, err)
		}
		for what, by := range map[string]string{"must be a quantity": "1e-999999999", "quantities must match": "777xyz777977"} {
			bad := bytes.ReplaceAll(good, []byte("777977797779"), []byte(by))
			o, err := runtime.Decode(d, bad)
			var u *Unread
			if err != nil || !errors.As(o.(error), &u) || u.Name != "p" || u.Namespace != "n" || u.ResourceVersion != "7" ||
				!strings.Contains(u.Error(), what) {
				t.Errorf("%s, %s: %v, %v", info.MediaType, by, o, err)
			}
			if _, _, err := d.Decode(bad, nil, new(corev1.Pod)); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s, %s, by itself: %v", info.MediaType, by, err)
			}
		}
		list, err := runtime.Encode(info.Serializer, &corev1.PodList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*pod},
		})
		if err != nil {
			t.Fatal(err)
		}
		list = bytes.ReplaceAll(list, []byte("777977797779"), []byte("1e-999999999"))
		if _, _, err := d.Decode(list, nil, new(corev1.PodList)); !apierrors.IsInternalError(err) {
			t.Errorf("%s, a list: %v", info.MediaType, err)
		}
		if _, err := runtime.Decode(d, good[:len(good)/2]); err == nil {
			t.Errorf("%s: half an object is one", info.MediaType)
		}
	}
}
