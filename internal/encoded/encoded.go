// Package encoded looks at objects of the API as they are sent, before they are decoded: a quantity such as
// 1e-999999999 is calculated when it is decoded, digit by digit, which takes hours and gigabytes of who decodes it.
package encoded

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/berth-node/berth/internal/quantity"
)

// Object is one that has not been decoded.
type Object struct {
	Kind    schema.GroupVersionKind // as far as it says
	Message []byte                  // of protobuf; nil: it is JSON
	Text    []byte
}

// Open reads no more of an object than its kind. What is neither protobuf in Kubernetes' envelope nor JSON has none.
func Open(data []byte) Object {
	if rest, is := bytes.CutPrefix(data, []byte(quantity.ProtobufPrefix)); is {
		var u runtime.Unknown
		if u.Unmarshal(rest) != nil {
			return Object{Message: []byte{}}
		}
		return Object{Kind: schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), Message: u.Raw}
	}
	o := Object{Text: data}
	if kind, err := serializerjson.DefaultMetaFactory.Interpret(data); err == nil {
		o.Kind = *kind
	}
	return o
}

// Costly names the quantities that would take for ever to decode into another object.
func (o *Object) Costly(into runtime.Object) error {
	check, data := quantity.CheckJSON, o.Text
	if o.Message != nil {
		check, data = quantity.CheckProtobuf, o.Message
	}
	if found := check(data, into); len(found) > 0 {
		return found.ToAggregate()
	}
	return nil
}

// Decode is what decodes by another decoder, as [runtime.Decoder] does.
type Decode func(by runtime.Decoder, data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (
	runtime.Object, *schema.GroupVersionKind, error)

// Serializer is another one with what it decodes led through Decode.
type Serializer struct {
	runtime.NegotiatedSerializer

	Decode Decode
}

// DecoderToVersion implements [runtime.NegotiatedSerializer].
func (s Serializer) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return decoder{s.NegotiatedSerializer.DecoderToVersion(d, gv), s.Decode}
}

type decoder struct {
	runtime.Decoder

	decode Decode
}

// Decode implements [runtime.Decoder].
func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (
	runtime.Object, *schema.GroupVersionKind, error,
) {
	return d.decode(d.Decoder, data, defaults, into)
}
