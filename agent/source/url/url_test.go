package url

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestHostileURL: a web server's answer has bounds, and a redirection takes no password elsewhere.
func TestHostileURL(t *testing.T) {
	var elsewhere atomic.Value
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Store(r.Header.Get("X-Secret"))
		_, _ = w.Write([]byte("a manifest"))
	}))
	defer other.Close()
	long := strings.Repeat("x", 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/header":
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), long)
			}
		case "/body":
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(long)); err != nil {
					return
				}
			}
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/pod", http.StatusFound)
		case "/pod":
			if r.Header.Get("X-Secret") != "hunter2" {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = w.Write([]byte("a manifest"))
		case "/reason":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.1 500 " + strings.Repeat(long, 20) + "\r\nConnection: close\r\n\r\n"))
				conn.Close()
			}
		}
	}))
	defer server.Close()
	header, err := ParseHeaders([]string{"X-Secret: hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/header": "server response headers exceeded", "/body": "answer has more than", "/round": "stopped after " +
			"10", "/away": "", "/here": "",
		"/reason": "the server answers 500 xxx",
	} {
		f := New(server.URL+path, header, 0)
		a := f.get(t.Context())
		f.client.CloseIdleConnections()
		if (a.Err == nil) != (want == "") || a.Err != nil &&
			(!strings.Contains(a.Err.Error(), want) || len(a.Err.Error()) > 300) {
			t.Errorf("%s: got %.300v, want %q", path, a.Err, want)
		}
	}
	if got := elsewhere.Load(); got != "" {
		t.Errorf("another server was told %q", got)
	}
}
