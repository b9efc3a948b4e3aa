package local

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A caller in the process reaches the driver, and is told when nobody accepts any more.
func TestInside(t *testing.T) {
	r := newRig(t)
	inside := NewInside()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.driver.ServeOn(ctx, inside) }()
	for range 20 {
		conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.Dial(ctx) }))
		must(t, err)
		got, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		if err != nil || got.Name != Name {
			t.Errorf("%v, %v", got, err)
		}
		must(t, conn.Close())
	}
	cancel()
	must(t, <-ended)
	if _, err := inside.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := inside.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	must(t, inside.Close())
	gone, stop := context.WithCancel(t.Context())
	stop()
	if _, err := NewInside().Dial(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that nobody waits for: %v", err)
	}
}

// A data directory with anything in it that is somebody's is not removed.
func TestRemove(t *testing.T) {
	for _, d := range []string{"records/volumes", "quarantine", "images"} {
		dir := filepath.Join(t.TempDir(), "data")
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
		file := filepath.Join(dir, d, "x")
		must(t, os.WriteFile(file, nil, 0o600))
		if gone, err := Leave(t.Context(), dir); gone || err != nil || !Used(dir) {
			t.Errorf("with a file in %s: %v, %v", d, gone, err)
		}
		must(t, os.Remove(file))
		if gone, err := Leave(t.Context(), dir); !gone || err != nil {
			t.Errorf("without: %v, %v", gone, err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("it is left: %v", err)
		}
	}
}
