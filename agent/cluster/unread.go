package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/berth-node/berth/internal/quantity"
)

// Unread is an object of a watch that cannot be read, with no more than its metadata, and the reason. client-go ends a
// watch at the first such object, and the next watch at the same one: of everything else nobody would ever hear.
type Unread struct {
	metav1.PartialObjectMetadata

	err error
}

// Error implements error.
func (u *Unread) Error() string { return u.err.Error() }

// DeepCopyObject implements [runtime.Object].
func (u *Unread) DeepCopyObject() runtime.Object {
	return &Unread{*u.PartialObjectMetadata.DeepCopy(), u.err}
}

// careful is what reads answers. A quantity such as 1e-999999999 is calculated when it is decoded, digit by digit,
// which takes hours and gigabytes, so that what has one is not.
type careful struct {
	runtime.NegotiatedSerializer

	scheme *runtime.Scheme
}

// DecoderToVersion implements [runtime.NegotiatedSerializer].
func (c careful) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return carefulDecoder{c.NegotiatedSerializer.DecoderToVersion(d, gv), c.scheme}
}

type carefulDecoder struct {
	runtime.Decoder

	scheme *runtime.Scheme
}

// Decode implements [runtime.Decoder]. What is asked for by itself goes into something; what a watch has does not.
func (d carefulDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	err := harmful(d.scheme, data, into)
	if err == nil {
		var o runtime.Object
		var kind *schema.GroupVersionKind
		if o, kind, err = d.Decoder.Decode(data, defaults, into); err == nil {
			return o, kind, nil
		}
	}
	e := opened(data)
	if e.kind.Kind == "" {
		return nil, defaults, err
	}
	err = fmt.Errorf("read %s: %s", clip(e.kind.Kind), clip(err.Error()))
	if into != nil { // the server is there, and others of its objects may be good
		return nil, defaults, apierrors.NewInternalError(err)
	}
	meta, ok := e.metadata()
	if !ok {
		return nil, defaults, err
	}
	return &Unread{meta, err}, &e.kind, nil
}

// envelope is an object that has not been decoded.
type envelope struct {
	kind    schema.GroupVersionKind // as far as it says
	message []byte                  // of protobuf; nil: it is JSON
	text    []byte
}

var protobufPrefix = []byte{'k', '8', 's', 0}

func opened(data []byte) envelope {
	if rest, is := bytes.CutPrefix(data, protobufPrefix); is {
		var u runtime.Unknown
		if u.Unmarshal(rest) != nil {
			return envelope{message: []byte{}}
		}
		return envelope{kind: schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), message: u.Raw}
	}
	e := envelope{text: data}
	if kind, err := serializerjson.DefaultMetaFactory.Interpret(data); err == nil {
		e.kind = *kind
	}
	return e
}

// harmful says why an object must not be decoded, as what it says it is or as what it is taken for.
func harmful(s *runtime.Scheme, data []byte, into runtime.Object) error {
	crowds := len(data) > long
	if !crowds && !quantity.Suspect(data) {
		return nil
	}
	e := opened(data)
	all := []runtime.Object{into}
	if o, err := s.New(e.kind); err == nil {
		all = append(all, o)
	}
	for _, o := range all {
		if o == nil {
			continue
		}
		if err := e.costly(o); err != nil {
			return err
		}
		if !crowds {
			continue
		}
		if err := e.crowded(reflect.TypeOf(o)); err != nil {
			return err
		}
	}
	return nil
}

// costly says which quantities of an object would take for ever to decode into another.
func (e *envelope) costly(o runtime.Object) error {
	check, data := quantity.CheckJSON, e.text
	if e.message != nil {
		check, data = quantity.CheckProtobuf, e.message
	}
	if found := check(data, o); len(found) > 0 {
		return found.ToAggregate()
	}
	return nil
}

// metadata reads nothing else of an object; false: that cannot be read, either. In protobuf it is field 1 of every
// kind.
func (e *envelope) metadata() (out metav1.PartialObjectMetadata, ok bool) {
	var err error
	if e.message != nil {
		err = out.Unmarshal(e.message)
	} else {
		err = json.Unmarshal(e.text, &out)
	}
	out.SetGroupVersionKind(e.kind)
	return out, err == nil && out.Name != ""
}
