package systemd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen stands in for the service manager.
func listen(t *testing.T) <-chan string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	out := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			out <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return out
}

func TestMessages(t *testing.T) {
	got := listen(t)
	n := NewNotifier(nil)
	n.Ready("3 pods")
	n.Status("4 pods")
	n.Reloading()
	n.Stopping()
	for _, want := range []string{"READY=1\nSTATUS=3 pods", "STATUS=4 pods", "RELOADING=1\nMONOTONIC_USEC=", "STOPPING=1\nSTATUS="} {
		if s := <-got; !strings.HasPrefix(s, want) {
			t.Errorf("got %q, want %q", s, want)
		}
	}
}

func TestSilentWithoutServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var log strings.Builder
	n := NewNotifier(slog.New(slog.NewTextHandler(&log, nil)))
	n.Ready("")
	if err := n.Watchdog(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if log.Len() != 0 {
		t.Errorf("it spoke: %s", log.String())
	}
}

func TestWatchdogSkipsBeatsWhileUnhealthy(t *testing.T) {
	got := listen(t)
	n := NewNotifier(nil)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := n.beat(ctx, time.Millisecond, func(context.Context) error {
		calls++
		switch calls {
		case 2, 3:
			return errors.New("stuck")
		case 5:
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // calls 1 and 4
		if s := <-got; s != "WATCHDOG=1" {
			t.Errorf("got %q", s)
		}
	}
	select {
	case s := <-got:
		t.Errorf("one beat too many: %q", s)
	default:
	}
}

func TestUnit(t *testing.T) {
	u := AgentUnit("/usr/local/bin/berth", "--root-dir", "/var/lib/my berth", "--label", `a="$HOME%n"`)
	u.Environment = []string{"GOGC=50", "A=b c"}
	got := u.String()
	for _, want := range []string{
		"Type=notify\n", "KillMode=process\n", "Delegate=yes\n", "ExecReload=/bin/kill -HUP $MAINPID\n", "Restart=always\n", "OOMScoreAdjust=-999\n", "WatchdogSec=1m0s\n",
		`ExecStart=/usr/local/bin/berth agent --root-dir "/var/lib/my berth" --label "a=\"$$HOME%%n\""` + "\n",
		"Environment=GOGC=50\n", `Environment="A=b c"` + "\n", "WantedBy=multi-user.target\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
