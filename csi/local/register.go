package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/internal/socket"
)

// Run serves the driver on a socket, and, with a registration directory, tells the kubelet of it, until ctx ends.
func (d *Driver) Run(ctx context.Context, endpoint, registrationDir string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.Serve(ctx, endpoint) })
	if registrationDir != "" {
		g.Go(func() error { return d.register(ctx, endpoint, registrationDir) })
	}
	return g.Wait()
}

// register answers the kubelet, which watches a directory for sockets of plugins.
func (d *Driver) register(ctx context.Context, endpoint, dir string) error {
	at := filepath.Join(dir, Name+"-reg.sock")
	l, err := socket.ListenPrivate(at, d.cfg.Log)
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(decorator{d.cfg.Log}.unary), grpc.MaxRecvMsgSize(maxMessage))
	registration.RegisterRegistrationServer(s, registrar{d: d, endpoint: strings.TrimPrefix(endpoint, "unix://")})
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return s.Serve(l)
}

// registrar is the service that the kubelet asks what a plugin is.
type registrar struct {
	registration.UnimplementedRegistrationServer
	d        *Driver
	endpoint string
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.d.cfg.Log.Info("the kubelet has registered the driver")
	} else {
		r.d.cfg.Log.Error("the kubelet has not registered the driver", "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
