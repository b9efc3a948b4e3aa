package pod

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestHTTPHook(t *testing.T) {
	var asked []string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String()+" "+r.Header.Get("X-Test"))
		if r.Host == "by.name" {
			asked[len(asked)-1] += "by name"
		}
		w.WriteHeader(http.StatusTeapot) // any answer will do
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	port := func(s *httptest.Server) int {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(u.Port())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port(plain))}}}
	to := target{"id", c, []string{"127.0.0.1"}}
	for _, h := range []struct {
		action corev1.HTTPGetAction
		want   string
	}{
		{corev1.HTTPGetAction{Path: "/a?b=c", Port: intstr.FromInt(port(plain))}, "GET /a?b=c "},
		{corev1.HTTPGetAction{Path: "a", Port: intstr.FromString("web")}, "GET /a "},
		{corev1.HTTPGetAction{Path: "/", Port: intstr.FromString(strconv.Itoa(port(plain))), HTTPHeaders: []corev1.HTTPHeader{
			{Name: "X-Test", Value: "1"}, {Name: "Host", Value: "by.name"},
		}}, "GET / 1by name"},
		{corev1.HTTPGetAction{Path: "/s", Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt(port(secure))}, "GET /s "},
		{corev1.HTTPGetAction{Path: "/h", Host: "localhost", Port: intstr.FromInt(port(plain))}, "GET /h "},
	} {
		asked = nil
		if err := runHook(t.Context(), nil, &corev1.LifecycleHandler{HTTPGet: &h.action}, to); err != nil {
			t.Errorf("%+v: %v", h.action, err)
		}
		if strings.Join(asked, ",") != h.want {
			t.Errorf("%+v: asked %q, want %q", h.action, asked, h.want)
		}
	}
	for _, bad := range []corev1.HTTPGetAction{
		{Path: "/", Port: intstr.FromString("none")},
		{Path: "/", Port: intstr.FromInt(1)},
		{Path: "%zz", Port: intstr.FromInt(port(plain))},
	} {
		if err := runHook(t.Context(), nil, &corev1.LifecycleHandler{HTTPGet: &bad}, to); err == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
	if err := runHook(t.Context(), nil, &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(1)}}, target{c: c}); err == nil {
		t.Error("a pod without an address is asked")
	}
	if err := runHook(t.Context(), nil, &corev1.LifecycleHandler{}, to); err == nil {
		t.Error("a hook that does nothing is no error")
	}
}

// A server that does not answer holds a hook up for as long as it has time, no longer.
func TestHTTPHookEndsWithItsTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	port := l.Addr().(*net.TCPAddr).Port
	h := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port)}}
	if err := runHook(ctx, nil, h, target{c: &corev1.Container{}, ips: []string{"127.0.0.1"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
}
