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
		if _, err := runtime.Decode(d, good[:len(good)/2]); err == nil {
			t.Errorf("%s: half an object is one", info.MediaType)
		}
	}
}

// TestPartly has a list with a pod that cannot be read, in both languages: the others are, and that one is named.
func TestPartly(t *testing.T) {
	c, err := NewClient(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	const costly = "777977797779"
	pod := func(name, quantity string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: "u", ResourceVersion: "7"},
			Spec:       corev1.PodSpec{NodeName: "here", Overhead: corev1.ResourceList{"cpu": resource.MustParse(quantity)}},
		}
	}
	list := &corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"},
		Items: []corev1.Pod{pod("a", "1"), pod("b", costly), pod("c", "2")},
	}
	for _, info := range c.cfg.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType != "application/json" && info.MediaType != contentProtobuf {
			continue
		}
		d := c.cfg.NegotiatedSerializer.DecoderToVersion(info.Serializer, corev1.SchemeGroupVersion)
		good, err := runtime.Encode(info.Serializer, list)
		if err != nil {
			t.Fatal(err)
		}
		for _, by := range []string{"1e-999999999", "777xyz777977"} {
			var got corev1.PodList
			_, _, err = d.Decode(bytes.ReplaceAll(good, []byte(costly), []byte(by)), nil, &got)
			var some *Partly
			if !errors.As(err, &some) || !apierrors.IsInternalError(err) || len(some.Unread()) != 1 || len(got.Items) != 2 {
				t.Fatalf("%s, %s: %d pods, %v", info.MediaType, by, len(got.Items), err)
			}
			u := some.Unread()[0].(*Unread)
			if u.Name != "b" || u.Namespace != "n" || u.UID != "u" || u.Error() == "" || got.Items[0].Name != "a" || got.Items[1].Name != "c" ||
				got.Items[1].Spec.NodeName != "here" || got.ResourceVersion != "9" || got.Continue != "more" {
				t.Errorf("%s, %s: %v of %v", info.MediaType, by, u, got)
			}
		}
		// What has no name that can be read may be any of them, and a list of another kind has none of them.
		nameless := bytes.ReplaceAll(bytes.ReplaceAll(good, []byte(costly), []byte("1e-999999999")), []byte(`"name":"b"`), []byte(`"name":""`))
		if info.MediaType == contentProtobuf {
			nameless = bytes.ReplaceAll(nameless, []byte("PodList"), []byte("podList"))
		}
		var some *Partly
		if _, _, err := d.Decode(nameless, nil, new(corev1.PodList)); err == nil || errors.As(err, &some) {
			t.Errorf("%s: a nameless one: %v", info.MediaType, err)
		}
	}
}
