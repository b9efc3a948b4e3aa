package openapi

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"
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
		klog.FromContext(r.Context()).Error(err, "API is not described", "path", r.URL.Path)
		w.WriteHeader(http.StatusInternalServerError)
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
