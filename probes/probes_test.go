package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ask(t *testing.T, p *corev1.Probe, target Target, want Outcome, message string) {
	t.Helper()
	q, err := New(p, target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, m := q(ctx)
	if got != want || !strings.Contains(m, message) {
		t.Errorf("got %v %q, want %v %q", got, m, want, message)
	}
}

func TestHTTP(t *testing.T) {
	var server *httptest.Server
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			fmt.Fprint(w, "fine")
		case "/headers":
			if r.Host != "example.org" || r.Header.Get("X-A") != "b" || !strings.HasPrefix(r.UserAgent(), "kube-probe/") {
				w.WriteHeader(http.StatusTeapot)
			}
		case "/query":
			if r.URL.RawQuery != "a=b" {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/there":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case "/hang":
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	for scheme, start := range map[string]func(http.Handler) *httptest.Server{"HTTP": httptest.NewServer, "HTTPS": httptest.NewTLSServer} {
		server = start(handler)
		host, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		n, _ := strconv.Atoi(port)
		target := Target{PodIP: host, Container: &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(n)}}}}
		probe := func(path string, h ...corev1.HTTPHeader) *corev1.Probe {
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Port: intstr.FromString("web"), Scheme: corev1.URIScheme(scheme), HTTPHeaders: h,
			}}}
		}
		ask(t, probe("/ok"), target, Success, "fine")
		ask(t, probe("/headers", corev1.HTTPHeader{Name: "Host", Value: "example.org"}, corev1.HTTPHeader{Name: "X-A", Value: "b"}), target, Success, "")
		ask(t, probe("/query?a=b"), target, Success, "")
		ask(t, probe("/there"), target, Success, "fine")
		ask(t, probe("/round"), target, Failure, "redirects")
		ask(t, probe("/away"), target, Success, "terminated redirects")
		ask(t, probe("/broken"), target, Failure, "statuscode: 500")

		q, err := New(probe("/hang"), target)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if o, m := q(ctx); o != Failure || !strings.Contains(m, "canceled") {
			t.Errorf("a server that hangs: %v %q", o, m)
		}
		server.Close()
		ask(t, probe("/ok"), target, Failure, "refused")
	}
	if _, err := New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("none")}}},
		Target{Container: &corev1.Container{Name: "c"}}); err == nil {
		t.Error("a port that the container does not have was taken")
	}
}

func TestTCPAndGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	target := Target{PodIP: "127.0.0.1", Container: &corev1.Container{}}
	s := grpc.NewServer()
	h := health.NewServer()
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, h)
	go s.Serve(l)
	tcp := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}}
	rpc := func(service string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(port), Service: &service}}}
	}
	ask(t, tcp, target, Success, "")
	ask(t, rpc(""), target, Success, "healthy")
	ask(t, rpc("down"), target, Failure, "NOT_SERVING")
	ask(t, rpc("unknown"), target, Failure, "unknown service")
	s.Stop()
	ask(t, tcp, target, Failure, "refused")
}

func TestExec(t *testing.T) {
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a", "b"}}}}
	run := func(code int, out string, err error) Target {
		return Target{Exec: func(context.Context, []string) (int, []byte, error) { return code, []byte(out), err }}
	}
	ask(t, p, run(0, "ok", nil), Success, "ok")
	ask(t, p, run(3, "why", nil), Failure, "why")
	ask(t, p, run(0, "", errors.New("no container")), Unknown, "no container")
}

func TestCounter(t *testing.T) {
	for _, c := range []struct {
		answers string // s, f or u each
		want    string // S or F where a result is reported, . where none is
	}{
		{"s", "S"}, {"ff", ".."}, {"fff", "..F"}, {"ffsfff", "..S..F"}, {"fffs", "..FS"}, {"sufuff", "S....F"}, {"ffffff", "..F..F"}, {"ssss", "S..."},
	} {
		k := counter{success: 1, failure: 3}
		var got strings.Builder
		for _, a := range c.answers {
			changed, ok := k.add(map[rune]Outcome{'s': Success, 'f': Failure, 'u': Unknown}[a])
			got.WriteString(map[[2]bool]string{{true, true}: "S", {true, false}: "F"}[[2]bool{changed, ok}])
			if !changed {
				got.WriteByte('.')
			}
		}
		if got.String() != c.want {
			t.Errorf("%s: got %s, want %s", c.answers, got.String(), c.want)
		}
	}
}

// TestLoop runs loops on a clock of their own: what is asked when, and what is reported when.
func TestLoop(t *testing.T) {
	run := func(t *testing.T, kind Kind, fast bool, upAfter, lasts time.Duration) (asked int32, reports []string) {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var n atomic.Int32
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			l := Loop{
				Kind: kind, Fast: fast, Period: 10 * time.Second, StartedAt: begin,
				Probe: &corev1.Probe{FailureThreshold: 3, SuccessThreshold: 1, TimeoutSeconds: 1},
				Ask: func(context.Context) (Outcome, string) {
					n.Add(1)
					if time.Since(begin) >= upAfter {
						return Success, ""
					}
					return Failure, ""
				},
				Report: func(r Result) {
					reports = append(reports, fmt.Sprintf("%v@%v", r.OK, time.Since(begin).Round(time.Second)))
				},
			}
			l.Run(ctx)
			asked = n.Load()
		})
		return asked, reports
	}
	for _, c := range []struct {
		kind           Kind
		fast           bool
		upAfter, lasts time.Duration
		asked          int32
		reports        string
	}{
		{Readiness, false, 0, 35 * time.Second, 4, "[true@0s]"},
		{Readiness, false, 12 * time.Second, 35 * time.Second, 4, "[true@20s]"},
		{Readiness, true, 2 * time.Second, 5 * time.Second, 11, "[true@3s]"},
		{Startup, true, time.Hour, 25 * time.Second, 17, "[false@20s]"},
		{Startup, false, 0, time.Hour, 1, "[true@0s]"},
		{Liveness, true, time.Hour, 25 * time.Second, 3, "[false@20s]"},
	} {
		asked, reports := run(t, c.kind, c.fast, c.upAfter, c.lasts)
		if fmt.Sprint(reports) != c.reports || asked != c.asked {
			t.Errorf("%+v: asked %d times, reported %v", c, asked, reports)
		}
	}
}

// TestLateSuccess has a container that is up long after its first question: it is asked as long as it takes.
func TestLateSuccess(t *testing.T) {
	for _, kind := range []Kind{Startup, Readiness} {
		synctest.Test(t, func(t *testing.T) {
			const after = 500
			ctx, cancel := context.WithTimeout(t.Context(), 2*after*time.Second)
			defer cancel()
			asked, passed := 0, false
			l := Loop{
				Kind: kind, Probe: &corev1.Probe{SuccessThreshold: 1, FailureThreshold: 3}, Period: time.Second, StartedAt: time.Now(),
				Fast: true,
				Ask: func(context.Context) (Outcome, string) {
					time.Sleep(time.Millisecond)
					if asked++; asked > after {
						return Success, ""
					}
					return Failure, "not yet"
				},
				Report: func(r Result) {
					if r.OK {
						passed = true
						cancel()
					}
				},
			}
			l.Run(ctx)
			if !passed {
				t.Errorf("%s: it has not passed, and was asked %d times", kind, asked)
			}
		})
	}
}

func TestPeriod(t *testing.T) {
	p := &corev1.Probe{PeriodSeconds: 10}
	pod := func(v string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PeriodAnnotation: v}}}
	}
	if d, err := Period(&corev1.Pod{}, p); err != nil || d != 10*time.Second {
		t.Errorf("no annotation: %v, %v", d, err)
	}
	if d, err := Period(pod("250"), p); err != nil || d != 250*time.Millisecond {
		t.Errorf("250: %v, %v", d, err)
	}
	for _, bad := range []string{"", "x", "-1", "5", "1.5"} {
		if _, err := Period(pod(bad), p); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func BenchmarkHTTP(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	host, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	n, _ := strconv.Atoi(port)
	q, err := New(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(n)}}}, Target{PodIP: host})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if o, m := q(b.Context()); o != Success {
			b.Fatal(m)
		}
	}
}
