package local

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The driver is reached by its socket, registers itself, and leaves nothing when it ends.
func TestServe(t *testing.T) {
	r := newRig(t)
	endpoint, plugins := filepath.Join(t.TempDir(), "csi.sock"), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.driver.Run(ctx, "unix://"+endpoint, plugins) }()
	dial := func(path string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		return conn
	}
	reg := dial(filepath.Join(plugins, Name+"-reg.sock"))
	info, err := registration.NewRegistrationClient(reg).GetInfo(t.Context(), &registration.InfoRequest{}, grpc.WaitForReady(true))
	must(t, err)
	if info.Type != registration.CSIPlugin || info.Name != Name || info.Endpoint != endpoint {
		t.Errorf("the driver is registered as %v", info)
	}
	_, err = registration.NewRegistrationClient(reg).NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
	must(t, err)
	reg.Close()
	for range 100 {
		conn := dial(endpoint)
		got, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		if err != nil || got.Name != Name {
			t.Errorf("%v, %v", got, err)
		}
		conn.Close()
	}
	if st, err := os.Stat(endpoint); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := r.driver.Serve(t.Context(), endpoint); err == nil {
		t.Error("two listen on one socket")
	}
	cancel()
	must(t, <-ended)
	if _, err := os.Stat(endpoint); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}
