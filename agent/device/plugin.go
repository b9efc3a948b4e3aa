package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// How long a plugin may take. kubelet waits for ever for an allocation; here the pod is tried again.
const (
	connectTimeout   = 10 * time.Second
	preferredTimeout = 10 * time.Second
	allocateTimeout  = time.Minute
	preStartTimeout  = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// plugin is a device plugin that has registered.
type plugin struct {
	resource corev1.ResourceName
	socket   string
	conn     *grpc.ClientConn
	client   pluginapi.DevicePluginClient
	end      context.CancelFunc

	ready   chan struct{}                  // closed when options are known, or the plugin is gone
	options *pluginapi.DevicePluginOptions // nil: it is gone
}

// What a plugin may answer, in bytes: a node with thousands of devices tells of them all at once.
const (
	maxHeader = 64 << 10
	maxAnswer = 16 << 20
)

// connect begins to hear of a plugin's devices, until it ends or another one comes in its place. said are its options,
// as far as its registration tells them.
func (s *plugins) connect(name corev1.ResourceName, socket string, said *pluginapi.DevicePluginOptions) error {
	if s.ctx.Err() != nil {
		return errors.New("the agent ends")
	}
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return fmt.Errorf("connect to device plugin: %w", err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	p := &plugin{
		resource: name, socket: socket, conn: conn, client: pluginapi.NewDevicePluginClient(conn), end: cancel,
		ready: make(chan struct{}),
	}
	s.inventory.connected(p)
	s.metrics.registrations.WithLabelValues(string(name)).Inc()
	s.wait.Go(func() {
		defer cancel()
		defer conn.Close()
		err := s.listen(ctx, p, said)
		if ctx.Err() == nil {
			s.log.Warn("device plugin is gone", "resource", string(name), "socket", socket, "error", err)
		}
		s.inventory.disconnected(p)
	})
	return nil
}

// listen hears of the plugin's devices until it ends.
func (s *plugins) listen(ctx context.Context, p *plugin, said *pluginapi.DevicePluginOptions) error {
	options, err := p.ask(ctx, said)
	p.options = options
	close(p.ready)
	if err != nil {
		return err
	}
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	s.log.Info("device plugin is connected", "resource", string(p.resource), "socket", p.socket)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("it has ended its list of devices")
		}
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		s.inventory.told(p, r.GetDevices())
	}
}

// ask asks for the plugin's options. Many a plugin registers before it serves, so that it is waited for.
func (p *plugin) ask(ctx context.Context, said *pluginapi.DevicePluginOptions) (*pluginapi.DevicePluginOptions, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	o, err := p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	switch {
	case err == nil:
		return o, nil
	case grpcstatus.Code(err) == codes.Unimplemented:
		if said == nil {
			said = &pluginapi.DevicePluginOptions{}
		}
		return said, nil
	}
	return nil, fmt.Errorf("ask for options: %w", err)
}

// known waits until the plugin's options are known.
func (p *plugin) known(ctx context.Context) (*pluginapi.DevicePluginOptions, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.ready:
	}
	if p.options == nil {
		return nil, fmt.Errorf("device plugin for %s is gone", p.resource)
	}
	return p.options, nil
}

// preferred asks the plugin which of the available devices it would choose.
func (p *plugin) preferred(ctx context.Context, available, must []string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, preferredTimeout)
	defer cancel()
	asked := []*pluginapi.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(n),
	}}
	r, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: asked})
	if err != nil {
		return nil, err
	}
	if len(r.GetContainerResponses()) != 1 {
		return nil, fmt.Errorf("it answers for %d containers, and was asked for one", len(r.GetContainerResponses()))
	}
	return r.GetContainerResponses()[0].GetDeviceIDs(), nil
}

func (p *plugin) allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	r, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, err
	}
	if len(r.GetContainerResponses()) != 1 {
		return nil, fmt.Errorf("it answers for %d containers, and was asked for one", len(r.GetContainerResponses()))
	}
	return r.GetContainerResponses()[0], nil
}

func (p *plugin) preStart(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}
