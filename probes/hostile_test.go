package probes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// unread is what kernels and TLS may hold between a server that writes and a client that has stopped reading: the
// buffers of both sockets of a connection over loopback, as large as tcp_rmem and tcp_wmem let them grow.
const unread = 16 << 20

// hostile listens on loopback, reads one request of each connection, and hands the connection to answer. It counts what
// answer could write, and in how many connections.
func hostile(t *testing.T, scheme string, answer func(w io.Writer)) (port int, sent, asked *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	if scheme == "HTTPS" {
		s := httptest.NewTLSServer(http.NotFoundHandler())
		s.Close()
		l = tls.NewListener(l, &tls.Config{Certificates: s.TLS.Certificates})
	}
	sent, asked = &atomic.Int64{}, &atomic.Int64{}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			wait.Go(func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					answer(counted{c, sent})
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wait.Wait()
	})
	return port, sent, asked
}

type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// endless writes a text until nobody takes it, 64 KiB at a time.
func endless(first, text string) func(io.Writer) {
	block := bytes.Repeat([]byte(text), 64<<10/len(text)+1)
	return func(w io.Writer) {
		_, err := io.WriteString(w, first)
		for err == nil {
			_, err = w.Write(block)
		}
	}
}

// TestHostileHTTP: what a container sends is not kept, and not even read, past a bound.
func TestHostileHTTP(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  func(io.Writer)
		want    Outcome
		message string
		asked   int64
	}{
		{"status line", endless("HTTP/1.1 200 ", "x"), Failure, "header of the answer", 1},
		{"header line", endless("HTTP/1.1 200 OK\r\nX: ", "x"), Failure, "header of the answer", 1},
		{"header lines", endless("HTTP/1.1 200 OK\r\n", "X: y\r\n"), Failure, "header of the answer", 1},
		{"continued header", endless("HTTP/1.1 200 OK\r\nX: y\r\n", " z\r\n"), Failure, "header of the answer", 1},
		{"interim answers", endless("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), Failure, "header of the answer", 1},
		{"body to the end", endless("HTTP/1.1 200 OK\r\n\r\n", "x"), Success, "xxxx", 1},
		{"long body", endless("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", "x"), Success, "xxxx", 1},
		{"chunked body", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "4\r\nxxxx\r\n"), Success, "xxxx", 1},
		{"chunk header", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;", "x"), Failure, "line too long", 1},
		{"trailer", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"), Failure, "trailer", 1},
		{"redirects", endless("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 1000000000000\r\n\r\n", "x"), Failure, "redirects", maxRedirects},
	} {
		for _, scheme := range []string{"HTTP", "HTTPS"} {
			t.Run(scheme+"/"+c.name, func(t *testing.T) {
				port, sent, asked := hostile(t, scheme, c.answer)
				p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: "/", Port: intstr.FromInt(port), Scheme: corev1.URIScheme(scheme),
				}}}
				// No deadline: the bound has to end it.
				q, err := New(p, Target{PodIP: "127.0.0.1"})
				if err != nil {
					t.Fatal(err)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				outcome, m := q(t.Context())
				runtime.ReadMemStats(&after)
				if outcome != c.want || !strings.Contains(m, c.message) || len(m) > MaxOutput {
					t.Errorf("got %v %.100q (%d bytes), want %v %q", outcome, m, len(m), c.want, c.message)
				}
				if n := asked.Load(); n != c.asked {
					t.Errorf("asked %d times, want %d", n, c.asked)
				}
				if n := sent.Load(); n > c.asked*unread {
					t.Errorf("the server could send %d bytes", n)
				}
				// The server's blocks are of the same process.
				if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
					t.Errorf("%d bytes were allocated", n)
				}
			})
		}
	}
}

// TestSlowHTTP: a server that always says a little more has no more time than one that says nothing.
func TestSlowHTTP(t *testing.T) {
	for name, first := range map[string]string{
		"header": "HTTP/1.1 200 OK\r\nX: ", "body": "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "interim": "HTTP/1.1 100 Continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			port, _, _ := hostile(t, "HTTP", func(w io.Writer) {
				_, err := io.WriteString(w, first)
				for n := 0; err == nil; n++ {
					if n == 20 {
						cancel()
					}
					time.Sleep(time.Millisecond)
					_, err = io.WriteString(w, "x")
				}
			})
			q, err := New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(port)}}}, Target{PodIP: "127.0.0.1"})
			if err != nil {
				t.Fatal(err)
			}
			if outcome, m := q(ctx); outcome != Failure || !strings.Contains(m, "context canceled") {
				t.Errorf("got %v %q", outcome, m)
			}
		})
	}
}

// TestInterimAnswers: the answer is the one behind them.
func TestInterimAnswers(t *testing.T) {
	port, _, _ := hostile(t, "HTTP", func(w io.Writer) {
		io.WriteString(w, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 8)+"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")
	})
	ask(t, &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(port)}}}, Target{PodIP: "127.0.0.1"}, Success, "fine")
}

// TestHostileHTTP2 is of a server that speaks HTTP/2 and sends without end.
func TestHostileHTTP2(t *testing.T) {
	var sent atomic.Int64
	block := make([]byte, 16<<10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/header":
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
		case "/interim":
			// No window bounds them, and packed they are a few bytes each, of which sockets hold any number: who asks
			// has to let go.
			for r.Context().Err() == nil {
				w.Header().Set("Link", strings.Repeat("x", 1000))
				w.WriteHeader(http.StatusEarlyHints)
			}
		case "/body":
			for {
				n, err := w.Write(block)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	port, http2 := s.Listener.Addr().(*net.TCPAddr).Port, corev1.HTTPProtocolHTTP2
	for path, want := range map[string]Outcome{"/header": Failure, "/interim": Failure, "/body": Success} {
		t.Run(path[1:], func(t *testing.T) {
			sent.Store(0)
			q, err := New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Port: intstr.FromInt(port), Protocol: &http2,
			}}}, Target{PodIP: "127.0.0.1"})
			if err != nil {
				t.Fatal(err)
			}
			if outcome, m := q(t.Context()); outcome != want || len(m) > MaxOutput {
				t.Errorf("got %v %.100q, want %v", outcome, m, want)
			}
			// What is not read is held by this side, up to its window, whatever the sockets hold.
			if n := sent.Load(); n > 1<<20 {
				t.Errorf("the server could send %d bytes", n)
			}
		})
	}
}

// TestHostileGRPC: so with gRPC.
func TestHostileGRPC(t *testing.T) {
	long := true
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		if long {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
			w.WriteHeader(http.StatusOK)
			return
		}
		// A message of 2 GiB, as it says of itself.
		_, err := w.Write([]byte{0, 0x7f, 0xff, 0xff, 0xff})
		for block := make([]byte, 16<<10); err == nil; {
			_, err = w.Write(block)
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(s.Listener.Addr().(*net.TCPAddr).Port)}}}
	ask(t, p, Target{PodIP: "127.0.0.1"}, Failure, "PROTOCOL_ERROR")
	long = false
	ask(t, p, Target{PodIP: "127.0.0.1"}, Failure, fmt.Sprint("vs. ", MaxOutput))
}

func TestLongOutput(t *testing.T) {
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"yes"}}}}
	for code, want := range []Outcome{Success, Failure} {
		q, err := New(p, Target{Exec: func(context.Context, []string) (int, []byte, error) {
			return code, bytes.Repeat([]byte("y\n"), 1<<20), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if outcome, m := q(t.Context()); outcome != want || len(m) != MaxOutput {
			t.Errorf("got %v with %d bytes, want %v with %d", outcome, len(m), want, MaxOutput)
		}
	}
}
