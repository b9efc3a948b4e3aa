package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
)

// way is the way with a connection.
type way struct{ taken []string }

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w.taken = append(w.taken, r.Method+" "+r.URL.RequestURI())
	return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody}, nil
}

type key struct{}

func newShortcut(h http.HandlerFunc) (*shortcut, *way, chan struct{}) {
	open, other := make(chan struct{}), &way{}
	return &shortcut{
		handler: h, open: open, other: other,
		infos: &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")},
		long:  filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward")),
	}, other, open
}

// TestShortcutWays has only what is short, and only while the server answers others, go without a connection.
func TestShortcutWays(t *testing.T) {
	s, other, open := newShortcut(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	ask := func(method, path string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://127.0.0.1:6443"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		return got.StatusCode
	}
	if code := ask("POST", "/api/v1/namespaces/n/pods/p/binding"); code != http.StatusTeapot {
		t.Errorf("before the server answers others a request comes to %d", code)
	}
	close(open)
	for method, path := range map[string]string{
		"POST": "/api/v1/namespaces/n/pods/p/binding", "PATCH": "/api/v1/namespaces/n/pods/p/status",
		"GET": "/api/v1/nodes/n", "DELETE": "/api/v1/nodes/n",
	} {
		if code := ask(method, path); code != http.StatusNoContent {
			t.Errorf("%s %s comes to %d", method, path, code)
		}
	}
	other.taken = nil
	long := []string{
		"GET /api/v1/pods", "GET /api/v1/pods?watch=true", "GET /api/v1/namespaces/n/pods/p/log", "POST /api/v1/namespaces/n/pods/p/exec",
		"DELETE /api/v1/namespaces/n/pods", "GET /api/v1/namespaces/n/services/s/proxy/a", "GET /metrics",
	}
	for _, one := range long {
		method, path, _ := strings.Cut(one, " ")
		ask(method, path)
	}
	if got := strings.Join(other.taken, "\n"); got != strings.Join(long, "\n") {
		t.Errorf("with a connection go\n%s\nnot\n%s", got, strings.Join(long, "\n"))
	}
}

// TestShortcutAnswers has handlers see what a server would show them, and clients get what they say.
func TestShortcutAnswers(t *testing.T) {
	s, _, open := newShortcut(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.RequestURI != "/api/v1/nodes/n?dryRun=All" || r.URL.Host != "" || r.Host != "127.0.0.1:6443" || r.Context().Value(key{}) != nil {
			t.Errorf("the handler sees %q of %q at %q, with %v", r.RequestURI, r.Host, r.URL.Host, r.Context())
		}
		r.Header.Del("Authorization")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusConflict)
		w.Header().Set("Late", "yes")
		_, _ = w.Write(append(body, '!'))
	})
	close(open)
	ctx := context.WithValue(t.Context(), key{}, "of another request")
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://127.0.0.1:6443/api/v1/nodes/n?dryRun=All", bytes.NewReader([]byte("hello")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer b")
	got, err := s.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil || string(body) != "hello!" || got.StatusCode != http.StatusConflict || got.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("the answer is %d %v %q, %v", got.StatusCode, got.Header, body, err)
	}
	if got.Header.Get("Late") != "" || r.Header.Get("Authorization") == "" {
		t.Errorf("headers are %v of the answer and %v of the request", got.Header, r.Header)
	}
}

// TestShortcutEnds has a client hear of it when a handler gives up, or when it does not want to wait any longer.
func TestShortcutEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, h := range map[string]http.HandlerFunc{
		"the handler has given up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		context.Canceled.Error():   func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() },
	} {
		s, _, open := newShortcut(h)
		close(open)
		in := t.Context()
		if name == context.Canceled.Error() {
			in = ctx
		}
		r, err := http.NewRequestWithContext(in, http.MethodGet, "https://127.0.0.1:6443/api/v1/nodes/n", nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.RoundTrip(r)
		if err == nil {
			got.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error is %v, not %s", err, name)
		}
		if in == ctx && !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	}
}

// BenchmarkShortcut is a small request with a handler that does nothing, with a connection and without.
func BenchmarkShortcut(b *testing.B) {
	s, _, open := newShortcut(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})
	close(open)
	server := httptest.NewUnstartedServer(s.handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for name, by := range map[string]http.RoundTripper{"connection": server.Client().Transport, "shortcut": s} {
		b.Run(name, func(b *testing.B) {
			body := make([]byte, 400)
			before := processor(b)
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL+"/api/v1/namespaces/n/pods/p/binding", bytes.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				got, err := by.RoundTrip(r)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, got.Body)
				got.Body.Close()
			}
			b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(b.N), "CPU-µs/op")
		})
	}
}

// processor is the time that the process has run.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
