// Package tracing has spans of requests sent to a collector, as a TracingConfiguration says.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

const (
	// serviceName is what kube-apiserver calls itself, too: who looks for its spans finds these.
	serviceName = "apiserver"
	// flushWait is how long the end of the process waits for a collector.
	flushWait = 5 * time.Second
	// tellEvery is how often a collector that takes nothing is told of.
	tellEvery = time.Minute
)

// Provider has spans made and sent.
type Provider struct{ tracing.TracerProvider }

// New makes the provider that a file asks for. Without a file it is nil. A collector that cannot be reached holds up
// nothing: spans that do not fit into the queue are lost.
func New(ctx context.Context, file string, log *slog.Logger) (*Provider, error) {
	if file == "" {
		return nil, nil // nobody has asked for one
	}
	config, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("read tracing configuration %s: %w", file, err)
	}
	otel.SetErrorHandler(&teller{log: log})
	p, err := tracing.NewProvider(ctx, config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", serviceName), attribute.String("service.instance.id", serviceName+"-"+string(uuid.NewUUID())),
	)})
	if err != nil {
		return nil, fmt.Errorf("make exporter of spans: %w", err)
	}
	return &Provider{p}, nil
}

func read(file string) (*tracingapi.TracingConfiguration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	object, kind, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*apiserver.TracingConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %s, want a TracingConfiguration", kind.Kind)
	}
	errs := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, utilfeature.DefaultFeatureGate, nil)
	return &config.TracingConfiguration, errs.ToAggregate()
}

// Shutdown sends what is left.
func (p *Provider) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushWait)
	defer cancel()
	return p.TracerProvider.Shutdown(ctx)
}

// DialOptions have the calls of a gRPC client be spans of the requests that they are for.
func (p *Provider) DialOptions() []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(p),
	))}
}

// teller tells of failures, but not of each.
type teller struct {
	log  *slog.Logger
	mu   sync.Mutex
	told time.Time
}

// Handle implements [otel.ErrorHandler].
func (t *teller) Handle(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.told) < tellEvery {
		return
	}
	t.told = time.Now()
	t.log.Warn("spans are not sent", "error", err)
}
