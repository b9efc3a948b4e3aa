package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"
)

// TestConnectToSilent: of a systemd that has crashed the socket is there, and nobody accepts at it.
func TestConnectToSilent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts of its own")
	}
	runtime.LockOSThread() // and the thread ends with the test, since it is not unlocked
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/run/systemd", 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", "/run/systemd/private")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &Driver{calls: make(chan struct{}, maxCalls)}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	called := errors.New("it is called")
	err = s.do(ctx, func(context.Context, *dbus.Conn) error { return called })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is %v", err)
	}
	if len(s.calls) != 0 || s.conn != nil {
		t.Errorf("%d calls are under way, and the connection is %v", len(s.calls), s.conn)
	}
}
