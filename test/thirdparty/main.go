// Command thirdparty is a CSI driver that others have written: the mock of Kubernetes' end-to-end tests, on a socket,
// with a registrar beside it as node-driver-registrar is one. It mounts nothing, keeps its volumes in memory, and says
// each call in a line on stdout. It is a module of its own: nothing of berth builds on it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	name := flag.String("name", "mock.example.com", "the driver's name")
	socket := flag.String("socket", "", "where it answers")
	registry := flag.String("registry", "", "the directory of sockets that registrars have")
	attach := flag.Bool("attach", false, "volumes are attached first")
	flag.Parse()
	if err := serve(*name, *socket, *registry, *attach); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(name, socket, registry string, attach bool) error {
	driver := service.New(service.Config{DriverName: name, DisableAttach: !attach, IO: service.OSDirIO{}})
	calls := grpc.NewServer(grpc.UnaryInterceptor(told))
	csi.RegisterIdentityServer(calls, driver)
	csi.RegisterControllerServer(calls, driver)
	csi.RegisterNodeServer(calls, driver)
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, &registrant{name: name, endpoint: socket})
	failed := make(chan error, 2)
	for _, s := range []struct {
		server *grpc.Server
		socket string
	}{{calls, socket}, {registrar, path.Join(registry, name+"-reg.sock")}} {
		if err := os.Remove(s.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l, err := net.Listen("unix", s.socket)
		if err != nil {
			return err
		}
		go func() { failed <- s.server.Serve(l) }()
	}
	return <-failed
}

// told says each call, of which volume it is, and what came of it.
func told(ctx context.Context, req any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, req)
	id := ""
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		id = r.GetVolumeId()
	}
	fmt.Println(path.Base(call.FullMethod), id, status.Code(err))
	return answer, err
}

// registrant says whose socket it is.
type registrant struct {
	registration.UnsafeRegistrationServer

	name, endpoint string
}

func (r *registrant) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrant) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	fmt.Println("registered", s.GetPluginRegistered(), s.GetError())
	return &registration.RegistrationStatusResponse{}, nil
}
