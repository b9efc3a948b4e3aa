package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// dialed sends some text to a server of the handler and returns the connection. What the server does not do in time is
// never done: the deadline is only for a test that has failed.
func dialed(t *testing.T, h http.Handler, text string) net.Conn {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

const noBody = "POST /run/a/b/c HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"

// TestSlowBody says that a body comes, of which nothing comes.
func TestSlowBody(t *testing.T) {
	p := patience{Read: 20 * time.Millisecond, Write: time.Hour}
	for name, h := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) },
		"read": func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil {
				t.Error("the body came")
			}
			http.Error(w, "no", http.StatusUnauthorized)
		},
	} {
		c := dialed(t, p.handler(h), noBody)
		all, err := io.ReadAll(c) // until the server closes it
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 401 ") {
			t.Errorf("%s: %q, %v", name, all, err)
		}
	}
}

// TestSlowReader takes nothing of an answer that does not end.
func TestSlowReader(t *testing.T) {
	ended := make(chan error)
	c := dialed(t, patience{Write: 20 * time.Millisecond}.handler(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
		}
	})), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	defer c.Close()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}

// TestPatient has requests that take their time, one after the other on a connection: none of the deadlines may be left
// from the last.
func TestPatient(t *testing.T) {
	const limit = time.Second // a busy machine may have a body come later than its head
	h := patience{Read: limit, Write: limit}.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(2 * limit):
		case <-r.Context().Done():
			t.Error("the request was given up")
		}
		fmt.Fprintf(w, "%s.", body)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * limit)
		fmt.Fprint(w, "end")
	}))
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP %d", version), func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(h)
			s.EnableHTTP2 = version == 2
			s.StartTLS()
			defer s.Close()
			for range 2 {
				resp, err := s.Client().Post(s.URL, "text/plain", strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(answer) != "body.end" || resp.ProtoMajor != version {
					t.Errorf("HTTP/%d: %q, %v", resp.ProtoMajor, answer, err)
				}
			}
		})
	}
}

// TestTakenOver: a connection that was taken over has no deadlines, and reaches who takes it by the interfaces that
// libraries look for.
func TestTakenOver(t *testing.T) {
	const limit = 200 * time.Millisecond
	c := dialed(t, patience{
		Read:  limit,
		Write: limit,
	}.handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, err := buf.ReadString('\n')
		fmt.Fprintf(conn, "%s%v", line, err)
	})), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	time.Sleep(2 * limit)
	fmt.Fprintln(c, "late")
	if answer, err := io.ReadAll(bufio.NewReader(c)); err != nil || string(answer) != "late\n<nil>" {
		t.Errorf("%q, %v", answer, err)
	}
}
