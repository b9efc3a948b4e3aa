package openapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"
)

// The media types of documents, beside JSON. Clients may ask for the same with an @ in it, as they did before.
const (
	protobufV2    = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	protobufV2Old = "com.github.proto-openapi.spec.v2@v1.0+protobuf"
	protobufV3    = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
	protobufV3Old = "com.github.proto-openapi.spec.v3@v1.0+protobuf"
	subtypeJSON   = "json"
)

// accepted is the encoding that a request wants, of JSON and one of Protobuf, if there is one; empty: neither.
func accepted(r *http.Request, binary string) string {
	old := map[string]string{protobufV2: protobufV2Old, protobufV3: protobufV3Old}[binary]
	for _, c := range goautoneg.ParseAccept(cmp.Or(r.Header.Get("Accept"), "*/*")) {
		if c.Type != "application" && c.Type != "*" {
			continue
		}
		switch {
		case c.SubType == subtypeJSON || c.SubType == "*":
			return subtypeJSON
		case binary != "" && (c.SubType == binary || c.SubType == old):
			return binary
		}
	}
	return ""
}

// serve answers with a document as JSON, or as what encode makes of it. With a name it has a URL by what it says.
func (d *Documents) serve(w http.ResponseWriter, r *http.Request, one *document, name string, encode func([]byte) ([]byte, error), binary string) {
	w.Header().Add("Vary", "Accept") // who keeps answers must not take the one for the other
	kind := accepted(r, binary)
	switch kind {
	case "":
		w.WriteHeader(http.StatusNotAcceptable)
		return
	case subtypeJSON:
		encode = nil
	}
	text, etag, err := one.text(encode)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/"+kind)
	w.Header().Set("Etag", strconv.Quote(etag))
	if hash := r.URL.Query().Get("hash"); name != "" && hash != "" {
		if hash != etag {
			http.Redirect(w, r, one.url(name), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	http.ServeContent(w, r, "", d.begun, bytes.NewReader(text))
}

// fail answers where there is no description.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	klog.FromContext(r.Context()).Error(err, "API is not described", "path", r.URL.Path)
	w.WriteHeader(http.StatusInternalServerError)
}

// Undescribed has a handler that has nothing to describe say so to the aggregator. One that does not know the path of
// the index is asked for a document of version 2, too, every second.
func Undescribed(of http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != pathV3 {
			of.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"paths":{}}`)) // its error is that nobody listens any more
	})
}

// Complete adds the documents of version 3 to those that a handler serves, the aggregator's of all servers, and to its
// index, by what they say. The server itself is told no more than that they are there: what applies mutating policies
// looks every five seconds which documents have changed, and these do not.
func (d *Documents) Complete(of http.Handler) http.Handler {
	documents := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.document(w, r, of) })
	// It counts as those do that the aggregator serves.
	counted := metrics.InstrumentHandlerFunc(http.MethodGet, "", "", "", "openapi/v3/", "", "", false, "", documents)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, below := strings.CutPrefix(r.URL.Path, pathV3+"/")
		switch {
		case below && d.names[name]:
			counted(w, r)
		case r.URL.Path == pathV3:
			d.index(w, r, of)
		default:
			of.ServeHTTP(w, r)
		}
	})
}

// document serves one, unless a handler has another of that name: of who serves a group in place of this server.
func (d *Documents) document(w http.ResponseWriter, r *http.Request, of http.Handler) {
	name := strings.TrimPrefix(r.URL.Path, pathV3+"/")
	there, err := others(r, of)
	if err == nil {
		if _, taken := there.Paths[name]; taken {
			of.ServeHTTP(w, r)
			return
		}
	}
	groups, err := d.made()
	if err != nil {
		fail(w, r, err)
		return
	}
	d.serve(w, r, groups[name], name, handler3.ToV3ProtoBinary, protobufV3)
}

// index serves what there is, of a handler and of this.
func (d *Documents) index(w http.ResponseWriter, r *http.Request, of http.Handler) {
	all, err := others(r, of)
	if err != nil {
		of.ServeHTTP(w, r) // it is its own answer
		return
	}
	text, err := d.complete(all, !bySelf(r))
	if err != nil {
		fail(w, r, err)
		return
	}
	http.ServeContent(w, r, "", time.Now(), bytes.NewReader(text))
}

// others is the index that a handler serves.
func others(r *http.Request, of http.Handler) (*handler3.OpenAPIV3Discovery, error) {
	whole := r.Clone(r.Context())
	whole.Method, whole.Header = http.MethodGet, http.Header{} // no part of it, nor only if it has changed
	whole.URL.Path, whole.URL.RawQuery = pathV3, ""
	got := responsewriter.NewInMemoryResponseWriter()
	of.ServeHTTP(got, whole)
	if got.RespCode() != http.StatusOK {
		return nil, fmt.Errorf("ask for index of descriptions: status %d", got.RespCode())
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(got.Data(), index); err != nil {
		return nil, fmt.Errorf("read index of descriptions: %w", err)
	}
	if index.Paths == nil {
		index.Paths = map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	}
	return index, nil
}

// bySelf says whether a server asks itself.
func bySelf(r *http.Request) bool {
	u, ok := request.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser
}

// complete adds the documents to an index, where it has none of that name, and makes them if it is to have their
// hashes.
func (d *Documents) complete(index *handler3.OpenAPIV3Discovery, hashes bool) ([]byte, error) {
	var groups map[string]*document
	if hashes {
		var err error
		if groups, err = d.made(); err != nil {
			return nil, err
		}
	}
	for name := range d.names {
		if _, taken := index.Paths[name]; taken {
			continue
		}
		url := unmade(name)
		if hashes {
			url = groups[name].url(name)
		}
		index.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: url}
	}
	text, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("write index of descriptions: %w", err)
	}
	return text, nil
}
