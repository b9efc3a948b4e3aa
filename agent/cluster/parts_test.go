package cluster

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/internal/encoded"
	"github.com/berth-node/berth/internal/quantity"
)

// crowd is a pod of so many containers of which nothing is said, in both languages.
func crowd(t *testing.T, n int) map[string][]byte {
	t.Helper()
	raw, err := (&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	spec := slices.Repeat([]byte{2<<3 | byte(protowire.BytesType), 0}, n)
	raw = protowire.AppendBytes(protowire.AppendTag(raw, 2, protowire.BytesType), spec)
	message, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		contentProtobuf: append([]byte(quantity.ProtobufPrefix), message...),
		"application/json": []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[` +
			strings.Repeat("{},", n-1) + `{}]}}`),
	}
}

// TestCrowds has pods of hundreds of thousands of containers of which nothing is said, which are small as long as they
// are not decoded, and an object that is as long and has few parts.
func TestCrowds(t *testing.T) {
	c, err := NewClient(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	keys := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Data: map[string]string{"json": strings.Repeat("{[n", 200_000)},
	}
	for i := range 10_000 {
		keys.Data[fmt.Sprint(i)] = strings.Repeat("x", 100)
	}
	many := crowd(t, maxParts+1)
	for _, info := range c.cfg.NegotiatedSerializer.SupportedMediaTypes() {
		if many[info.MediaType] == nil {
			continue
		}
		d := c.cfg.NegotiatedSerializer.DecoderToVersion(info.Serializer, corev1.SchemeGroupVersion)
		if o, err := runtime.Decode(d, many[info.MediaType]); err != nil || !strings.Contains(fmt.Sprint(o.(error)), "parts") {
			t.Errorf("%s: %T, %v", info.MediaType, o, err)
		}
		data, err := runtime.Encode(info.Serializer, keys)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := runtime.Decode(d, data); err != nil || len(o.(*corev1.ConfigMap).Data) != 10_001 {
			t.Errorf("%s: %T, %v", info.MediaType, o, err)
		}
	}
	list := encoded.Object{Text: []byte(strings.Repeat("{},", maxParts+1))}
	list.Kind.Kind = "PodList"
	if err := crowded(&list, reflect.TypeFor[*corev1.PodList]()); err != nil {
		t.Errorf("a list of as many: %v", err)
	}
}
