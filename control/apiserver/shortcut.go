package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// shortcut has requests of this process answered by the server's handlers, without a connection: who schedules writes
// once or twice for each pod, and TLS and HTTP/2 on both sides of a socket are a good part of a small request. All that
// a handler does to a request of others it does to these, too. What lasts, as watches do, or has an answer without
// bounds, as lists, goes the way of others.
type shortcut struct {
	handler http.Handler
	// open is closed when the server answers others.
	open  <-chan struct{}
	infos request.RequestInfoResolver
	long  request.LongRunningRequestCheck
	// other is the way with a connection.
	other http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (s *shortcut) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.fits(r) {
		return s.other.RoundTrip(r)
	}
	// The server's values belong to one request, and who calls may be answering another one.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(r.Context(), cancel)()
	answer := &answer{header: http.Header{}}
	if err := s.serve(answer, incoming(ctx, r)); err != nil {
		return nil, err
	}
	if err := r.Context().Err(); err != nil {
		return nil, err // what the handler says then is for nobody
	}
	return answer.response(r), nil
}

// fits says whether a request is answered without a connection.
func (s *shortcut) fits(r *http.Request) bool {
	select {
	case <-s.open:
	default:
		return false
	}
	info, err := s.infos.NewRequestInfo(r)
	if err != nil || !info.IsResourceRequest || info.Verb == "list" || info.Verb == "deletecollection" || r.Header.Get("Upgrade") != "" {
		return false
	}
	return !s.long(r, info)
}

// serve has the handler answer. One that gives up a request panics, which ends the connection where there is one.
func (s *shortcut) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ask own API server: the handler has given up: %v", p)
		}
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper does
		}
	}()
	s.handler.ServeHTTP(w, r)
	return nil
}

// incoming is a client's request as a server sees it. Handlers change headers and address, which stay the client's.
func incoming(ctx context.Context, r *http.Request) *http.Request {
	in := r.Clone(ctx)
	in.URL.Scheme, in.URL.Host, in.URL.User = "", "", nil
	in.RequestURI, in.RemoteAddr = in.URL.RequestURI(), "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	return in
}

// answer is what a handler writes.
type answer struct {
	header, sent http.Header
	code         int
	body         bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter]: the first code counts, and headers as they are then.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 && code >= http.StatusOK {
		a.code, a.sent = code, a.header.Clone()
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

// response is the answer as a client sees it.
func (a *answer) response(r *http.Request) *http.Response {
	a.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)), StatusCode: a.code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: a.sent, Body: io.NopCloser(bytes.NewReader(a.body.Bytes())), ContentLength: int64(a.body.Len()), Request: r,
	}
}
