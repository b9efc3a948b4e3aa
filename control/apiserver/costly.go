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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/control/apiserver/registry"
	"github.com/berth-node/berth/internal/encoded"
	"github.com/berth-node/berth/internal/quantity"
)

// A quantity such as 1e-999999999 is calculated when it is decoded, digit by digit, which takes hours and gigabytes of
// who decodes it. Whoever may send a pod to the API server would have ended it by that. So what is sent is looked at
// before.

// careful reads requests, but for such quantities.
func careful(s *runtime.Scheme) encoded.Decode {
	return func(by runtime.Decoder, data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (
		runtime.Object, *schema.GroupVersionKind, error,
	) {
		if err := checkBody(s, data, defaults); err != nil {
			return nil, defaults, err
		}
		return by.Decode(data, defaults, into)
	}
}

// checkBody refuses what would take for ever to decode, as what it says it is and as what it is taken for where it does
// not say. What is wrong with it otherwise the decoder says.
func checkBody(s *runtime.Scheme, data []byte, defaults *schema.GroupVersionKind) error {
	if !quantity.Suspect(data) {
		return nil
	}
	if !bytes.HasPrefix(data, []byte(quantity.ProtobufPrefix)) {
		text, err := asJSON(data)
		if err != nil {
			return nil
		}
		data = text
	}
	e := encoded.Open(data)
	for _, k := range []*schema.GroupVersionKind{&e.Kind, whole(&e.Kind, defaults)} {
		if k == nil {
			continue
		}
		o, err := s.New(*k)
		if err != nil {
			continue // it is not decoded, either
		}
		if err := e.Costly(o); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return nil
}

// whole is a kind with what it does not say of itself.
func whole(kind, defaults *schema.GroupVersionKind) *schema.GroupVersionKind {
	if defaults == nil {
		return nil
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
