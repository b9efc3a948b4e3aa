package openapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiserver/pkg/authentication/user"
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

// Complete has the index of version 3 that a handler serves, the aggregator's of all servers, name the documents by
// what they say. The aggregator has asked for the outline, in which nothing of them is. The server itself is told no
// more: what applies mutating policies looks every five seconds which documents have changed, and these do not.
func (d *Documents) Complete(of http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != pathV3 || bySelf(r) {
			of.ServeHTTP(w, r)
			return
		}
		whole := r.Clone(r.Context())
		whole.Method, whole.Header = http.MethodGet, http.Header{} // no part of it, nor only if it has changed
		got := responsewriter.NewInMemoryResponseWriter()
		of.ServeHTTP(got, whole)
		if got.RespCode() != http.StatusOK {
			of.ServeHTTP(w, r) // it is its own answer
			return
		}
		index, err := d.complete(got.Data())
		if err != nil {
			fail(w, r, err)
			return
		}
		http.ServeContent(w, r, "", time.Now(), bytes.NewReader(index))
	})
}

// bySelf says whether a server asks itself.
func bySelf(r *http.Request) bool {
	u, ok := request.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser
}

// complete puts the hashes into an index. What other servers have in it stays.
func (d *Documents) complete(text []byte) ([]byte, error) {
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("read index of descriptions: %w", err)
	}
	groups, err := d.made()
	if err != nil {
		return nil, err
	}
	for name, one := range groups {
		if index.Paths[name].ServerRelativeURL == unmade(name) {
			index.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: one.url(name)}
		}
	}
	if text, err = json.Marshal(index); err != nil {
		return nil, fmt.Errorf("write index of descriptions: %w", err)
	}
	return text, nil
}
