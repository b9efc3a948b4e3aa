package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/internal/socket"
)

const dirMode = 0o750

// plugins is where plugins register, and what is heard of those that have.
type plugins struct {
	dir       string // of the sockets
	log       *slog.Logger
	metrics   *metrics
	inventory *inventory
	ctx       context.Context // of what is heard
	stop      context.CancelFunc
	wait      sync.WaitGroup
}

// run serves the registration of plugins until ctx ends and nothing is heard of any plugin any more. It runs once, but
// may be run again when it could not serve and ctx has not ended.
func (p *plugins) run(ctx context.Context) error {
	l, err := p.listenSocket(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	defer p.close()
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(srv, &registration{plugins: p})
	unhook := context.AfterFunc(ctx, srv.Stop)
	defer unhook()
	p.log.Info("serving registration of device plugins", "socket", l.Addr().String())
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve registration of device plugins: %w", err)
	}
	return nil
}

// listenSocket opens a new socket and takes the sockets of plugins away: that is how a plugin hears that the agent was
// restarted, and that it has to register again. Plugins register again as well when the socket is missed and made anew.
func (p *plugins) listenSocket(ctx context.Context) (net.Listener, error) {
	if err := os.MkdirAll(p.dir, dirMode); err != nil {
		return nil, fmt.Errorf("make directory of device plugins: %w", err)
	}
	path := filepath.Join(p.dir, SocketName)
	if c, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("serve registration of device plugins: another agent serves %s", path)
	}
	// Before plugins hear of the socket: those that register at once make their own again.
	if err := p.dismiss(); err != nil {
		return nil, err
	}
	l, err := socket.ListenPrivate(path, p.log)
	if err != nil {
		return nil, fmt.Errorf("serve registration of device plugins: %w", err)
	}
	return l, nil
}

// dismiss takes the sockets of plugins away.
func (p *plugins) dismiss() error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("read directory of device plugins: %w", err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 || e.Name() == SocketName {
			continue
		}
		if err := os.Remove(filepath.Join(p.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove socket of device plugin: %w", err)
		}
	}
	return nil
}

// registration is the service that plugins register with.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	plugins *plugins
}

// Register implements the service of that name.
func (r *registration) Register(_ context.Context, in *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := r.plugins.register(in); err != nil {
		r.plugins.log.Warn("device plugin is refused", "resource", in.GetResourceName(), "endpoint", in.GetEndpoint(),
			"error", err)
		return nil, grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	return &pluginapi.Empty{}, nil
}

func (p *plugins) register(in *pluginapi.RegisterRequest) error {
	if err := CheckVersions([]string{in.GetVersion()}); err != nil {
		return err
	}
	if e := in.GetEndpoint(); e == "" || e != filepath.Base(e) || e == "." || e == ".." || e == SocketName {
		return fmt.Errorf("endpoint %q: must be the name of the plugin's socket in %s", e, p.dir)
	}
	name := corev1.ResourceName(in.GetResourceName())
	if err := CheckName(name); err != nil {
		return err
	}
	return p.connect(name, filepath.Join(p.dir, in.GetEndpoint()), in.GetOptions())
}

// CheckVersions says why none of the versions of the API that a plugin speaks is one that is spoken here.
func CheckVersions(versions []string) error {
	for _, v := range versions {
		if slices.Contains(pluginapi.SupportedVersions[:], v) {
			return nil
		}
	}
	return fmt.Errorf("versions %q of the device plugin API are not spoken here: supported is %q", versions,
		pluginapi.SupportedVersions[:])
}

// CheckName says why no plugin can offer a resource of that name.
func CheckName(name corev1.ResourceName) error {
	if bad := validation.IsQualifiedName(string(name)); len(bad) > 0 {
		return fmt.Errorf("resource name %q: %s", name, bad[0])
	}
	if !IsExtended(name) {
		return fmt.Errorf("resource name %q: must be DOMAIN/NAME with a domain of its own, outside of kubernetes.io", name)
	}
	return nil
}

// close lets all plugins go.
func (p *plugins) close() {
	p.inventory.close()
	p.stop()
	p.wait.Wait()
}
