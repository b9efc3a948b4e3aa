package pod

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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

// TestHostileHTTPHook: the container that a hook asks cannot make the agent keep what it sends, nor ask others.
func TestHostileHTTPHook(t *testing.T) {
	const loopback = 16 << 20 // what both sockets' buffers may hold unread
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	defer elsewhere.Close()
	_, other, _ := strings.Cut(elsewhere.Listener.Addr().String(), ":")
	for _, c := range []struct{ name, first, text, want string }{
		{"header", "HTTP/1.1 200 OK\r\n", "X: y\r\n", "header"},
		{"interim", "", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", "header"},
		{"body", "HTTP/1.1 200 OK\r\n\r\n", "x", ""},
		{"redirects", "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 1000000000000\r\n\r\n", "x", "stopped after 10 redirects"},
		{"elsewhere", "HTTP/1.1 302 Found\r\nLocation: http://localhost:" + other + "/\r\nContent-Length: 0\r\n\r\n", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var sent, asked atomic.Int64
			var wait sync.WaitGroup
			wait.Go(func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					asked.Add(1)
					wait.Go(func() {
						defer conn.Close()
						// An answer that comes before its request is one to nothing.
						_, err := conn.Read(make([]byte, 4096))
						if err == nil {
							_, err = io.WriteString(conn, c.first)
						}
						block := []byte(strings.Repeat(c.text, 10000))
						for err == nil && len(block) > 0 {
							var n int
							n, err = conn.Write(block)
							sent.Add(int64(n))
						}
						io.Copy(io.Discard, conn)
					})
				}
			})
			defer wait.Wait()
			defer l.Close()
			h := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(l.Addr().(*net.TCPAddr).Port)}}
			err = runHook(t.Context(), nil, h, target{c: &corev1.Container{}, ips: []string{"127.0.0.1"}})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("ended with %v, want %q", err, c.want)
			}
			if n := sent.Load(); n > asked.Load()*loopback || asked.Load() > 10 {
				t.Errorf("asked %d times, and got up to %d bytes", asked.Load(), n)
			}
		})
	}
}

// TestOutputOfCommands: of what a runtime has sent of a command's output no more is copied than is used.
func TestOutputOfCommands(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 1<<20)
	for _, c := range []struct{ out, complaint, want int }{{5, 7, 12}, {1 << 20, 1 << 20, 100}, {1, 1 << 20, 100}, {0, 3, 3}} {
		got := output(&runtimeapi.ExecSyncResponse{Stdout: long[:c.out], Stderr: long[:c.complaint]}, 100)
		if len(got) != c.want || cap(got) > 256 {
			t.Errorf("%d and %d bytes: got %d of %d, want %d", c.out, c.complaint, len(got), cap(got), c.want)
		}
	}
	var wanted []string
	rt := failing{run: func(ctx context.Context) {
		md, _ := metadata.FromOutgoingContext(ctx)
		wanted = append(wanted, md.Get("berth-exec-output")...)
	}}
	h := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"yes"}}}
	if err := runHook(t.Context(), rt, h, target{}); err == nil || len(wanted) != 1 || wanted[0] != strconv.Itoa(hookOutput+1) {
		t.Errorf("got %v, having asked for %q bytes", err, wanted)
	}
}

// failing runs commands that fail.
type failing struct {
	Containers

	run func(ctx context.Context)
}

func (f failing) ExecSync(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	f.run(ctx)
	return &runtimeapi.ExecSyncResponse{ExitCode: 1}, nil
}

// TestLogTail: the last rows of a log may be one of many MiB.
func TestLogTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	row := "2026-01-02T03:04:05.678901234Z stdout P " + strings.Repeat("x", 16<<10-1) + "y\n"
	for range 1000 {
		if _, err := f.WriteString(row); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteString("2026-01-02T03:04:05.678901234Z stdout F the end\n"); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := logTail(path, 2048)
	runtime.ReadMemStats(&after)
	if want := strings.Repeat("x", 2048-9) + "ythe end\n"; got != want {
		t.Errorf("got %d bytes, ending with %q", len(got), got[max(0, len(got)-20):])
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}
