package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
)

const (
	// callTimeout is how long a driver may take, by kubelet's rule.
	callTimeout = 45 * time.Second
	// maxAnswer bounds what a driver may answer, in bytes.
	maxAnswer = 4 << 20
	// maxHeader bounds what it may say before that.
	maxHeader = 64 << 10
)

// plugin is a driver's that has registered.
type plugin struct {
	driver string
	socket string
	conn   *grpc.ClientConn
	client drav1.DRAPluginClient
	health healthv1.DRAResourceHealthClient // nil: it does not tell
	end    context.CancelFunc
}

// drivers are the plugins that have registered, and what they have said of their devices.
type drivers struct {
	log     *slog.Logger
	calls   *prometheus.HistogramVec
	changed chan struct{}   // devices are otherwise than before
	ctx     context.Context // of what is heard of drivers
	stop    context.CancelFunc
	wait    sync.WaitGroup

	mu      sync.Mutex
	plugins map[string][]*plugin // by driver, the one that has registered last at the end
	health  map[string]map[deviceKey]health
}

func newDrivers(log *slog.Logger, calls *prometheus.HistogramVec) *drivers {
	s := &drivers{
		log: log, calls: calls, changed: make(chan struct{}, 1),
		plugins: map[string][]*plugin{}, health: map[string]map[deviceKey]health{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// close returns when nothing is heard of any driver any more.
func (s *drivers) close() {
	s.stop()
	s.wait.Wait()
}

func (s *drivers) register(name, socket string, versions []string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return errors.New("the agent ends")
	}
	p := &plugin{driver: name, socket: socket}
	// A driver that was restarted on its socket is to be had again soon.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithUnaryInterceptor(s.measured(name)))
	if err != nil {
		return fmt.Errorf("connect to DRA driver: %w", err)
	}
	if p.conn = conn; !p.speak(versions) {
		conn.Close()
		return fmt.Errorf("versions %q are not spoken here: supported_versions must have %q or %q", versions, drav1.DRAPluginService, drav1beta1.DRAPluginService)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	p.end = cancel
	s.mu.Lock()
	s.plugins[name] = append(s.plugins[name], p)
	s.mu.Unlock()
	s.wait.Go(func() {
		defer conn.Close()
		s.watchHealth(ctx, p)
		<-ctx.Done()
	})
	return nil
}

// speak chooses the services; false: the plugin has none that is spoken here.
func (p *plugin) speak(versions []string) bool {
	switch {
	case slices.Contains(versions, drav1.DRAPluginService):
		p.client = drav1.NewDRAPluginClient(p.conn)
	case slices.Contains(versions, drav1beta1.DRAPluginService):
		p.client = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(p.conn)}
	default:
		return false
	}
	switch {
	case slices.Contains(versions, healthv1.DRAResourceHealthService):
		p.health = healthv1.NewDRAResourceHealthClient(p.conn)
	case slices.Contains(versions, healthv1alpha1.DRAResourceHealthService):
		p.health = healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(p.conn)}
	}
	return true
}

// CheckName says why no driver can have that name.
func CheckName(name string) error {
	if bad := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(bad) > 0 {
		return fmt.Errorf("driver name %q: %s", name, bad[0])
	}
	if len(name) > resourcev1.DriverNameMaxLength {
		return fmt.Errorf("driver name %q: must have at most %d characters", name, resourcev1.DriverNameMaxLength)
	}
	return nil
}

func (s *drivers) deregister(name, socket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.plugins[name], func(p *plugin) bool { return p.socket == socket })
	if i < 0 {
		return
	}
	s.plugins[name][i].end()
	if s.plugins[name] = slices.Delete(s.plugins[name], i, i+1); len(s.plugins[name]) == 0 {
		delete(s.plugins, name)
		delete(s.health, name)
	}
	ring(s.changed)
}

// measured counts the calls of a driver.
func (s *drivers) measured(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		s.calls.WithLabelValues(driver, method, grpcstatus.Code(err).String()).Observe(time.Since(began).Seconds())
		return err
	}
}

// last is the plugin of a driver that has registered last.
func (s *drivers) last(driver string) (*plugin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.plugins[driver]
	if len(all) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered: no plugin of that name is in the plugin registration directory",
			driver)
	}
	return all[len(all)-1], nil
}
