package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/agent/device/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// heard is a handler that tells what it is told.
type heard struct {
	events chan string
	refuse chan error // the answers to come, then none
}

func (h *heard) Register(_ context.Context, p Plugin) error {
	select {
	case err := <-h.refuse:
		return err
	default:
	}
	h.events <- "register " + p.Name + " " + strings.Join(p.Versions, ",")
	return nil
}

func (h *heard) Forget(Plugin) {}

func (h *heard) Deregister(p Plugin) { h.events <- "deregister " + p.Name }

func (h *heard) want(t *testing.T, want string) {
	t.Helper()
	if got := <-h.events; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func runPlugin(t *testing.T, p *devicetest.Plugin) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestWatcher follows plugins that were there before, that come into a directory of their own, go and come again.
func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	first := &devicetest.Plugin{Resource: "example.com/first", Registry: dir}
	stopFirst := runPlugin(t, first)
	h := &heard{events: make(chan string, 10), refuse: make(chan error, 1)}
	w := New(Config{Dir: dir, Handlers: map[string]Handler{registerapi.DevicePlugin: h}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	h.want(t, "register example.com/first v1beta1")

	h.refuse <- errors.New("not today")
	told := make(chan *registerapi.RegistrationStatus, 10)
	second := &devicetest.Plugin{Resource: "example.com/second", Registry: filepath.Join(dir, "second"), Told: told}
	stop := runPlugin(t, second)
	h.want(t, "register example.com/second v1beta1") // the second time
	if said := <-told; said.GetPluginRegistered() || said.GetError() != "not today" {
		t.Errorf("the plugin that was refused was told %v", said)
	}
	if said := <-told; !said.GetPluginRegistered() || said.GetError() != "" {
		t.Errorf("the plugin that was taken was told %v", said)
	}
	stop()
	h.want(t, "deregister example.com/second")
	stop = runPlugin(t, second)
	h.want(t, "register example.com/second v1beta1")
	stop()
	h.want(t, "deregister example.com/second")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.want(t, "deregister example.com/first")
	stopFirst()
}

func TestTake(t *testing.T) {
	w := New(Config{Handlers: map[string]Handler{"X": &heard{}}})
	for _, tt := range []struct {
		p    Plugin
		want string
	}{
		{Plugin{Type: "Y", Name: "a", Endpoint: "/a"}, `type "Y" are not supported`},
		{Plugin{Type: "X", Endpoint: "/a"}, "no name"},
		{Plugin{Type: "X", Name: "a", Endpoint: "a"}, "absolute path"},
	} {
		if err := w.take(t.Context(), tt.p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v is refused with %v", tt.p, err)
		}
	}
}

// TestDirectoryIsMadeAgain has somebody remove the directory, and move it away: who registers after that is found.
func TestDirectoryIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	h := &heard{events: make(chan string, 10), refuse: make(chan error, 1)}
	w := New(Config{Dir: dir, Handlers: map[string]Handler{registerapi.DevicePlugin: h}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for i, goes := range []func() error{
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Rename(dir, dir+".old") },
		func() error { return nil },
	} {
		name := fmt.Sprintf("example.com/p%d", i)
		stop := runPlugin(t, &devicetest.Plugin{Resource: name, Registry: dir})
		h.want(t, "register "+name+" v1beta1")
		if err := goes(); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			h.want(t, "deregister "+name)
		}
		stop()
	}
	h.want(t, "deregister example.com/p2")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// slow is a handler that does not come to an end with one plugin, as that does not answer, as long as its socket is
// there.
type slow struct {
	heard
	name   string
	begun  chan bool
	forgot chan string
}

func (s *slow) Register(ctx context.Context, p Plugin) error {
	if p.Name != s.name {
		return s.heard.Register(ctx, p)
	}
	s.begun <- true
	<-ctx.Done()
	return ctx.Err()
}

func (s *slow) Forget(p Plugin) { s.forgot <- p.Name }

// TestSlow: a plugin that does not answer holds up no other, also when its socket goes and comes again.
func TestSlow(t *testing.T) {
	dir := t.TempDir()
	h := &slow{heard: heard{events: make(chan string, 10)}, name: "example.com/slow", begun: make(chan bool, 10), forgot: make(chan string, 10)}
	w := New(Config{Dir: dir, Handlers: map[string]Handler{registerapi.DevicePlugin: h}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	bad := &devicetest.Plugin{Resource: h.name, Registry: filepath.Join(dir, "bad")}
	for range 3 {
		stop := runPlugin(t, bad)
		<-h.begun
		stop()
		if got := <-h.forgot; got != h.name {
			t.Errorf("forgot %s", got)
		}
	}
	stopBad := runPlugin(t, bad)
	<-h.begun
	stopGood := runPlugin(t, &devicetest.Plugin{Resource: "example.com/good", Registry: filepath.Join(dir, "good")})
	h.want(t, "register example.com/good v1beta1")
	stopGood()
	h.want(t, "deregister example.com/good")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stopBad()
}
