package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

// Register makes a plugin of the plugin registration directory the one of its driver. Its versions are the names of the services that
// it has. Of several of one name, as while a driver is updated, the last one is asked.
func (m *Manager) Register(name, socket string, versions []string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if m.ctx.Err() != nil {
		return errors.New("the agent ends")
	}
	p := &plugin{driver: name, socket: socket}
	// A driver that was restarted on its socket is to be had again soon.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithUnaryInterceptor(m.measured(name)))
	if err != nil {
		return fmt.Errorf("connect to DRA driver: %w", err)
	}
	if p.conn = conn; !p.speak(versions) {
		conn.Close()
		return fmt.Errorf("versions %q are not spoken here: supported_versions must have %q or %q", versions, drav1.DRAPluginService, drav1beta1.DRAPluginService)
	}
	ctx, cancel := context.WithCancel(m.ctx)
	p.end = cancel
	m.mu.Lock()
	m.plugins[name] = append(m.plugins[name], p)
	m.mu.Unlock()
	m.wait.Go(func() {
		defer conn.Close()
		m.watchHealth(ctx, p)
		<-ctx.Done()
	})
	ring(m.freed)
	ring(m.orphans)
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

// Deregister lets the plugin of a driver go that is at that socket, the first of several: the next one may have taken its place there
// before it went.
func (m *Manager) Deregister(name, socket string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.plugins[name], func(p *plugin) bool { return p.socket == socket })
	if i < 0 {
		return
	}
	m.plugins[name][i].end()
	if m.plugins[name] = slices.Delete(m.plugins[name], i, i+1); len(m.plugins[name]) == 0 {
		delete(m.plugins, name)
		delete(m.health, name)
	}
	ring(m.changed)
}

// measured counts the calls of a driver.
func (m *Manager) measured(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		m.metrics.calls.WithLabelValues(driver, method, grpcstatus.Code(err).String()).Observe(time.Since(began).Seconds())
		return err
	}
}
