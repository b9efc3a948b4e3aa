package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/internal/encoded"
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

// careful reads answers. What is asked for by itself goes into something; what a watch has does not.
func careful(scheme *runtime.Scheme) encoded.Decode {
	return func(by runtime.Decoder, data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (
		runtime.Object, *schema.GroupVersionKind, error,
	) {
		err := harmful(scheme, data, into)
		if err == nil {
			var o runtime.Object
			var kind *schema.GroupVersionKind
			if o, kind, err = by.Decode(data, defaults, into); err == nil {
				return o, kind, nil
			}
		}
		e := encoded.Open(data)
		if e.Kind.Kind == "" {
			return nil, defaults, err
		}
		err = fmt.Errorf("read %s: %s", clip(e.Kind.Kind), clip(err.Error()))
		if into != nil { // the server is there, and others of its objects may be good
			if some := apart(scheme, by, &e, into, err); some != nil {
				return nil, defaults, some
			}
			return nil, defaults, apierrors.NewInternalError(err)
		}
		meta, ok := metadata(&e)
		if !ok {
			return nil, defaults, err
		}
		return &Unread{meta, err}, &e.Kind, nil
	}
}

// harmful says why an object must not be decoded, as what it says it is or as what it is taken for.
func harmful(s *runtime.Scheme, data []byte, into runtime.Object) error {
	if len(data) <= long && !quantity.Suspect(data) {
		return nil
	}
	e := encoded.Open(data)
	all := []runtime.Object{into}
	if o, err := s.New(e.Kind); err == nil {
		all = append(all, o)
	}
	for _, o := range all {
		if o == nil {
			continue
		}
		if err := harmfulAs(&e, o); err != nil {
			return err
		}
	}
	return nil
}

// harmfulAs says why an object must not be decoded as another.
func harmfulAs(e *encoded.Object, as runtime.Object) error {
	if err := e.Costly(as); err != nil {
		return err
	}
	if len(e.Message)+len(e.Text) <= long {
		return nil
	}
	return crowded(e, reflect.TypeOf(as))
}

// metadata reads nothing else of an object; false: that cannot be read, either. In protobuf it is field 1 of every
// kind.
func metadata(e *encoded.Object) (out metav1.PartialObjectMetadata, ok bool) {
	var err error
	if e.Message != nil {
		err = out.Unmarshal(e.Message)
	} else {
		err = json.Unmarshal(e.Text, &out)
	}
	out.SetGroupVersionKind(e.Kind)
	return out, err == nil && out.Name != ""
}
