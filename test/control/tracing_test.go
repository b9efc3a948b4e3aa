package control

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// spanCollector keeps the spans that it is sent.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	mu      sync.Mutex
	spans   []*tracev1.Span
	service string
}

// Export implements the collector's service.
func (c *spanCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				c.service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// of are the spans of a trace, and their names in one text.
func (c *spanCollector) of(trace string) (spans []*tracev1.Span, names string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == trace {
			spans, names = append(spans, s), names+s.Name+"\n"
		}
	}
	return spans, names
}

// collect starts a collector, and is its address.
func collect(t *testing.T) (*spanCollector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &spanCollector{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return c, l.Addr().String()
}

func tracingConfig(t *testing.T, endpoint string, rate int) string {
	t.Helper()
	return write(t, "tracing.yaml", fmt.Sprintf(
		"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: %d\n", endpoint, rate))
}

// traced has each request say which trace it belongs to.
type traced struct {
	http.RoundTripper
	parent string
}

// RoundTrip implements [http.RoundTripper].
func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Traceparent", t.parent)
	return t.RoundTripper.RoundTrip(r)
}

// in is a client whose requests belong to a trace.
func (p *plane) in(trace, span, flags string) kubernetes.Interface {
	c := rest.CopyConfig(p.config)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return traced{next, "00-" + trace + "-" + span + "-" + flags}
	})
	return kubernetes.NewForConfigOrDie(c)
}

// TestTracing has requests of which their callers say whether they are sampled.
func TestTracing(t *testing.T) {
	t.Parallel()
	c, address := collect(t)
	p := startWith(t, t.TempDir(), nil, "--tracing-config-file", tracingConfig(t, address, 0))
	sampled, not, parent := strings.Repeat("ab", 16), strings.Repeat("cd", 16), strings.Repeat("12", 8)
	for trace, flags := range map[string]string{not: "00", sampled: "01"} {
		if _, err := p.in(trace, parent, flags).CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("traced-"+flags), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const name = "POST /api/v1/namespaces/{:namespace}/configmaps"
	until(t, "spans are sent", func() error {
		if _, names := c.of(sampled); !strings.Contains(names, name) || !strings.Contains(names, "etcdserverpb.KV/Txn") {
			return fmt.Errorf("%q", names)
		}
		return nil
	})
	p.stop(t)
	spans, names := c.of(sampled)
	for _, s := range spans {
		if (s.Name == name) != (hex.EncodeToString(s.ParentSpanId) == parent) {
			t.Errorf("%s has the parent %x", s.Name, s.ParentSpanId)
		}
	}
	t.Logf("spans:\n%s", names)
	if _, names := c.of(not); names != "" {
		t.Errorf("a request that is not sampled has spans %q", names)
	}
	if c.service != "apiserver" {
		t.Errorf("the service is %q", c.service)
	}
}

// TestTracingSamples has the server choose: here, each request. What is left is sent at the end.
func TestTracingSamples(t *testing.T) {
	t.Parallel()
	c, address := collect(t)
	p := startWith(t, t.TempDir(), nil, "--tracing-config-file", tracingConfig(t, address, 1_000_000))
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("last"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == "POST /api/v1/namespaces/{:namespace}/configmaps" {
			return
		}
	}
	t.Errorf("the last request is in none of %d spans", len(c.spans))
}

// TestTracingToNobody has collectors that are not there, or hang. Requests go on, and the process ends.
func TestTracingToNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for name, address := range map[string]string{"hangs": l.Addr().String(), "is not there": "127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startWith(t, t.TempDir(), nil, "--tracing-config-file", tracingConfig(t, address, 1_000_000))
			p.quick(t, "a collector that "+name, 1200) // more spans than are kept
			until(t, "it is told", func() error {
				if !strings.Contains(p.output.String(), "spans are not sent") {
					return errors.New("nobody is told")
				}
				return nil
			})
			p.stop(t)
		})
	}
}
