package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/podresources"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/internal/disk"
	"github.com/berth-node/berth/internal/spread"
)

// In the root directory: which container was given which devices, and which pods have which resource claims.
const (
	devicesFile = "devices.json"
	claimsFile  = "resourceclaims.json"
)

// The directories of sockets, by kubelet's names. Drivers have what is their own in directories below driverDir.
const (
	driverDir       = "plugins"
	devicePluginDir = "device-plugins"
	pluginDir       = "plugins_registry"
	podResourcesDir = "pod-resources"
)

// makeRoot makes the root directory, and that of the pods' directories. On a disk that cannot be written the runtime
// says so, and makes it when it can.
func makeRoot(c *Config) error {
	if err := os.MkdirAll(c.RootDir, 0o711); err != nil && !disk.Unwritable(err) {
		return fmt.Errorf("make root directory: %w", err)
	}
	pods := filepath.Join(c.RootDir, "pods")
	if err := os.Mkdir(pods, 0o750); err == nil || errors.Is(err, fs.ErrExist) { // else it is made with the first pod
		spread.Apart(pods)
	}
	return nil
}

func openDevices(c *Config) (*device.Manager, error) {
	if err := makeRoot(c); err != nil {
		return nil, err
	}
	machine, err := topology.Read("/")
	if err != nil {
		return nil, err
	}
	d := device.Config{
		Dir: filepath.Join(c.KubeletDir, devicePluginDir), File: filepath.Join(c.RootDir, devicesFile), Log: c.Log,
		Elsewhere: func(p *corev1.Pod) bool { return desired.RulesOf(p).CountedElsewhere },
	}
	for _, n := range machine.Nodes {
		d.Nodes = append(d.Nodes, n.ID)
	}
	return device.New(d)
}

// deviceFiles are what agents of a place keep and serve for devices.
func deviceFiles(p config.Place) []string {
	var out []string
	for _, s := range []string{filepath.Join(p.KubeletDir, devicePluginDir, device.SocketName), podResourcesSocket(p)} {
		out = append(out, s, s+".new") // in which it is made
	}
	for _, f := range []string{devicesFile, claimsFile, pluginResourcesFile} {
		for _, suffix := range []string{"", ".new", record.Aside} {
			out = append(out, filepath.Join(p.RootDir, f+suffix))
		}
	}
	return out
}

// deviceDirs are the directories for sockets, which agents of a place or their plugins make.
func deviceDirs(p config.Place) []string {
	var out []string
	for _, dir := range []string{devicePluginDir, pluginDir, driverDir, podResourcesDir} {
		out = append(out, filepath.Join(p.KubeletDir, dir))
	}
	return out
}

func podResourcesSocket(p config.Place) string {
	return filepath.Join(p.KubeletDir, podResourcesDir, device.SocketName)
}

// pluginDevices are devices of plugins, of the NUMA nodes that a pod's admission has found for each of its containers.
type pluginDevices struct {
	devices *device.Manager
	pins    *pinning.Manager
	had     func() []corev1.ResourceName // what plugins have offered, also before the agent was started
}

var _ pod.NodeResource = pluginDevices{}

// Name implements [pod.NodeResource].
func (pluginDevices) Name() string { return "devices" }

// Concerns implements [pod.NodeResource].
func (d pluginDevices) Concerns(p *corev1.Pod) bool { return d.devices.Has(p.UID) }

// Admit implements [pod.NodeResource].
func (d pluginDevices) Admit(p *corev1.Pod, _ bool) error {
	return d.devices.Admit(p, func(container string) pinning.Nodes { return d.pins.Near(p.UID, container) })
}

// Prepare asks the plugins for the pod's devices.
func (d pluginDevices) Prepare(ctx context.Context, p *corev1.Pod) error {
	if err := d.devices.Allocate(ctx, p); err != nil {
		return &pod.PrepareError{Reason: pinning.ReasonAdmission, Err: err}
	}
	return nil
}

// Inject implements [pod.NodeResource].
func (d pluginDevices) Inject(ctx context.Context, p *corev1.Pod, c *corev1.Container, into *spec.Injection) error {
	answers, err := d.devices.Start(ctx, p, c)
	if err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	for _, a := range answers {
		into.Add(a)
	}
	return nil
}

// Health implements [pod.NodeResource].
func (d pluginDevices) Health(p *corev1.Pod) map[string][]corev1.ResourceStatus {
	return d.devices.Health(p.UID)
}

// Changes implements [pod.NodeResource].
func (d pluginDevices) Changes() (changed, freed <-chan struct{}) { return d.devices.Changed(), nil }

// Release implements [pod.NodeResource].
func (d pluginDevices) Release(_ context.Context, uid types.UID) error { return d.devices.Release(uid) }

// Synced implements [pod.NodeResource].
func (d pluginDevices) Synced(here func(types.UID) bool) error { return d.devices.Synced(here) }

// extended is what plugins offer beside what the node has, and 0 of what they have offered before, as the Node has it.
func (d pluginDevices) extended() corev1.ResourceList {
	_, allocatable := d.devices.Resources()
	for _, name := range d.had() {
		if _, has := allocatable[name]; !has {
			allocatable[name] = *resource.NewQuantity(0, resource.DecimalSI)
		}
	}
	return allocatable
}

// runDevices serves plugins, and those who ask what is whose.
func (a *Agent) runDevices(ctx context.Context, g *errgroup.Group) {
	handlers := map[string]plugin.Handler{
		registerapi.DevicePlugin: devicePlugins{a.managers.devices},
		registerapi.DRAPlugin:    draPlugins{a.managers.claims},
		registerapi.CSIPlugin:    csiPlugins{a.managers.csi.drivers},
	}
	watch := plugin.New(plugin.Config{
		Dir: filepath.Join(a.cfg.KubeletDir, pluginDir), Log: a.log, Handlers: handlers,
	})
	tell := podresources.New(podresources.Config{
		Socket: podResourcesSocket(a.cfg.Place), Pods: a.pods, Devices: a.managers.devices, Pins: a.managers.pins,
		Dynamic: a.managers.claims.Dynamic, Log: a.log,
	})
	g.Go(func() error { return lasting(ctx, a.log, a.managers.devices.Run) })
	g.Go(func() error { return a.managers.claims.Run(ctx) })
	g.Go(func() error { return a.managers.runCSI(ctx) })
	g.Go(func() error {
		(&health{volumes: a.managers.csi, pods: a.pods.List, events: a.events}).run(ctx)
		return nil
	})
	g.Go(func() error { return lasting(ctx, a.log, watch.Run) })
	g.Go(func() error { return lasting(ctx, a.log, tell.Run) })
}

// lastingPause is how long after a failure a part is run again.
const lastingPause = 10 * time.Second

// lasting runs a part again that cannot run in the state that the disk is in, or for want of descriptors or of watches,
// which containers can take from the node (inotify instances are counted for each user, and root in a container is the
// same one as outside): pods that need nothing of it go on meanwhile.
func lasting(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	for told := ""; ; {
		err := run(ctx)
		if err == nil || !disk.Unwritable(err) && !disk.Scarce(err) || ctx.Err() != nil {
			return err
		}
		if err.Error() != told {
			log.Error("a part of the agent does not run, and is tried again", "error", err)
			told = err.Error()
		}
		select {
		case <-ctx.Done():
			_ = run(ctx) // it ends what it has begun
			return nil
		case <-time.After(lastingPause):
		}
	}
}

// devicePlugins are those of the registration directory.
type devicePlugins struct{ m *device.Manager }

// Register implements plugin.Handler.
func (d devicePlugins) Register(_ context.Context, p plugin.Plugin) error {
	return d.m.Register(p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugin.Handler.
func (d devicePlugins) Deregister(p plugin.Plugin) { d.m.Deregister(p.Name, p.Endpoint) }

// Forget implements plugin.Handler: of plugins that are refused nothing is kept.
func (devicePlugins) Forget(plugin.Plugin) {}
