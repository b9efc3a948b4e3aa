package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/control/apiserver/registry"
	"github.com/berth-node/berth/internal/quantity"
)

// A quantity such as 1e-999999999 is calculated when it is decoded, digit by digit, which takes hours and gigabytes of
// who decodes it. Whoever may send a pod to the API server would have ended it by that. So what is sent is looked at
// before.

// careful is what reads requests, but for such quantities.
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

// Decode implements [runtime.Decoder].
func (d carefulDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if err := checkBody(d.scheme, data, defaults); err != nil {
		return nil, defaults, err
	}
	return d.Decoder.Decode(data, defaults, into)
}

var protobufPrefix = []byte{'k', '8', 's', 0}

// checkBody refuses what would take for ever to decode. What is wrong with it otherwise the decoder says.
func checkBody(s *runtime.Scheme, data []byte, defaults *schema.GroupVersionKind) error {
	if message, is := bytes.CutPrefix(data, protobufPrefix); is {
		var envelope runtime.Unknown
		if envelope.Unmarshal(message) != nil {
			return nil
		}
		kind := schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind)
		return checkTypes(s, &kind, defaults, func(o runtime.Object) field.ErrorList { return quantity.CheckProtobuf(envelope.Raw, o) })
	}
	if !quantity.Suspect(data) {
		return nil
	}
	text, err := asJSON(data)
	if err != nil {
		return nil
	}
	kind, err := serializerjson.DefaultMetaFactory.Interpret(text)
	if err != nil {
		kind = nil
	}
	return checkTypes(s, kind, defaults, func(o runtime.Object) field.ErrorList { return quantity.CheckJSON(text, o) })
}

// checkTypes looks at a text as what it says it is, and as what it is taken for where it does not say.
func checkTypes(s *runtime.Scheme, kind, defaults *schema.GroupVersionKind, check func(runtime.Object) field.ErrorList) error {
	for _, k := range []*schema.GroupVersionKind{kind, whole(kind, defaults)} {
		if k == nil {
			continue
		}
		o, err := s.New(*k)
		if err != nil {
			continue // it is not decoded, either
		}
		if found := check(o); len(found) > 0 {
			return apierrors.NewBadRequest(found.ToAggregate().Error())
		}
	}
	return nil
}

// whole is a kind with what it does not say of itself.
func whole(kind, defaults *schema.GroupVersionKind) *schema.GroupVersionKind {
	if defaults == nil || kind == nil {
		return defaults
	}
	out := *kind
	if out.Kind == "" {
		out.Kind = defaults.Kind
	}
	if out.Version == "" {
		out.Group, out.Version = defaults.Group, defaults.Version
	}
	return &out
}

// asJSON is YAML as it is decoded, by its JSON.
func asJSON(data []byte) ([]byte, error) {
	if json.Valid(data) {
		return data, nil
	}
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	return text, nil
}

// maxPatch is what the server reads of a body, as Kubernetes' does.
const maxPatch = 3 << 20

// carefulPatches looks at patches that are a part of an object: these are not decoded by what reads objects.
func carefulPatches(codecs runtime.NegotiatedSerializer, api http.Handler) http.Handler {
	objects := registry.Objects()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if !ok || err != nil || r.Method != http.MethodPatch || kind != string(types.StrategicMergePatchType) && kind != string(types.ApplyYAMLPatchType) {
			api.ServeHTTP(w, r)
			return
		}
		o := objects[schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}]
		if o == nil {
			api.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxPatch+1))
		if err == nil && len(body) <= maxPatch && quantity.Suspect(body) {
			if text, err := asJSON(body); err == nil {
				if found := quantity.CheckJSON(text, o); len(found) > 0 {
					responsewriters.ErrorNegotiated(apierrors.NewBadRequest(found.ToAggregate().Error()), codecs, schema.GroupVersion{Version: "v1"}, w, r)
					return
				}
			}
		}
		// What could not be read, or is too much, is so to the handler, too.
		rest := io.MultiReader(bytes.NewReader(body), r.Body)
		if err != nil {
			rest = io.MultiReader(bytes.NewReader(body), failing{err})
		}
		r.Body = readCloser{rest, r.Body}
		api.ServeHTTP(w, r)
	})
}

type readCloser struct {
	io.Reader
	io.Closer
}

// failing is a body that could not be read.
type failing struct{ err error }

// Read implements [io.Reader].
func (f failing) Read([]byte) (int, error) { return 0, f.err }
