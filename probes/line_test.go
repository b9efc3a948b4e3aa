package probes

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// httpProbe asks a server that listens.
func httpProbe(l net.Listener, more ...corev1.HTTPHeader) (*corev1.Probe, Target) {
	host, port, _ := net.SplitHostPort(l.Addr().String())
	n, _ := strconv.Atoi(port)
	get := corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(n), HTTPHeaders: more}
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &get}}, Target{PodIP: host}
}

// TestLongRequest has a request that no socket holds at once, to a server that reads it later.
func TestLongRequest(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strconv.Itoa(len(r.Header.Get("X-Long"))))
	}))
	server.Config.MaxHeaderBytes = 64 << 20
	server.Start()
	defer server.Close()
	const size = 16 << 20 // more than tcp_wmem and tcp_rmem hold
	p, target := httpProbe(server.Listener, corev1.HTTPHeader{Name: "X-Long", Value: strings.Repeat("x", size)})
	ask(t, p, target, Success, strconv.Itoa(size))
}

func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "six")
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	p, target := httpProbe(l)
	ask(t, p, target, Success, "six")
}

// full is a port that takes no more connections: what is sent there is not answered.
func full(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return to
}

// TestUnconnected gives up a connection that nobody answers, by a deadline and because the container ends.
func TestUnconnected(t *testing.T) {
	to := full(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := openLine(ctx, to, []byte("GET"))
	if failed := new(net.OpError); !errors.As(err, &failed) || failed.Op != "dial" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := openLine(ctx, to, []byte("GET")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestManyLines has many questions share what they wait with, while some of them are given up.
func TestManyLines(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	defer server.Close()
	p, target := httpProbe(server.Listener)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for round := range 20 {
				own := *p.HTTPGet
				own.Path = "/" + strconv.Itoa(i) + "-" + strconv.Itoa(round)
				q, err := New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &own}}, target)
				if err != nil {
					t.Error(err)
					return
				}
				if o, m := q(t.Context()); o != Success || m != own.Path {
					t.Errorf("%s: %v %q", own.Path, o, m)
				}
				own.Path = "/hang"
				if q, err = New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &own}}, target); err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round)*time.Millisecond)
				if o, m := q(ctx); o != Failure || !strings.Contains(m, "deadline exceeded") && !strings.Contains(m, "i/o timeout") {
					t.Errorf("a server that hangs: %v %q", o, m)
				}
				cancel()
			}
		})
	}
	all.Wait()
}
