package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/token"
	volumecsi "github.com/berth-node/berth/agent/volume/csi"
	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/local"
	"github.com/berth-node/berth/csi/node"
	"github.com/berth-node/berth/internal/filetree"
)

// csiDir has the records of the volumes of CSI drivers, in the root directory.
const csiDir = "csi"

// csiVolumes are the CSI drivers of the node, and the volumes that pods have of them.
type csiVolumes struct {
	drivers *csi.Drivers
	volumes *node.Manager
	objects *object.Stores
	own     *localDriver // nil: the agent has none itself
	node    string       // the node's name
	// token makes tokens of the service accounts of pods of an API server; nil: there is none.
	token func(context.Context, *corev1.Pod, token.Want) (token.Token, error)
	log   *slog.Logger

	changed, freed chan struct{} // see [pod.NodeResource]
	given          given
	boundName      boundName // nil: no pod has an ephemeral volume of the node's own
}

// csiSettings are those of the drivers of a node.
type csiSettings struct {
	place         config.Place
	node, version string
	csi           config.CSI
	token         func(context.Context, *corev1.Pod, token.Want) (token.Token, error) // nil: there is no API server
	boundName     boundName                                                           // nil: nobody knows one
}

// openCSI reads the records of the volumes that pods have. No driver is called before one registers.
func openCSI(c csiSettings, objects *object.Stores, log *slog.Logger) (*csiVolumes, error) {
	// The kernel's list of mounts has no links in its paths.
	root, err := filepath.EvalSymlinks(c.place.RootDir)
	if errors.Is(err, fs.ErrNotExist) {
		root, err = c.place.RootDir, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find root directory: %w", err)
	}
	known := csi.Config{Sockets: c.csi.Drivers, Log: log}
	var own *localDriver
	if c.csi.Local.On {
		own = newLocalDriver(root, &c, log)
		known.Own, known.Wanted = local.Name, own.want
	}
	v := &csiVolumes{
		drivers: csi.NewDrivers(known), objects: objects, own: own, node: c.node, token: c.token, log: log,
		changed: make(chan struct{}, 1), freed: make(chan struct{}, 1), boundName: c.boundName,
	}
	v.volumes, err = node.New(node.Config{
		Root: root, Records: filepath.Join(root, csiDir), Drivers: v.drivers, Node: c.node, Boot: pod.BootID(), Log: log,
		Secret: func(of node.SecretRef) (map[string]string, error) { return v.secret(of.Namespace, of.Name) },
	})
	if err != nil {
		return nil, err
	}
	v.drivers.Subscribe(func(e csi.Event) {
		if e.Here {
			v.ring()
		}
	})
	return v, nil
}

// secret is the content of a Secret of the manifests, as drivers have it. It is asked for where this node does what an
// API server's controllers do for the pods of theirs.
func (v *csiVolumes) secret(namespace, name string) (map[string]string, error) {
	o, err := v.objects.Of(desired.File).Secret(namespace, name)
	if err != nil {
		return nil, err
	}
	return csi.Secrets(o.Data), nil
}

// ring has pods look again that wait for a driver, for its limit, or for a volume of another pod.
func (v *csiVolumes) ring() {
	for _, bell := range []chan struct{}{v.changed, v.freed} {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
}

// kind is what the volumes of pods know of it.
func (v *csiVolumes) kind() volumecsi.Config {
	return volumecsi.Config{
		Volumes: v.volumes, Released: v.ring,
		Served: volumecsi.Served{Token: v.token, Attachment: func(driver, handle string) (*storagev1.VolumeAttachment, error) {
			return v.objects.Of(desired.API).VolumeAttachment(object.AttachmentName(handle, driver, v.node))
		}},
		Driver: func(p *corev1.Pod, name string) (*storagev1.CSIDriver, error) {
			return v.object(desired.OriginOf(p), name)
		},
	}
}

// run takes on the drivers of the settings, until ctx ends and nothing is heard of any driver any more. Who works with
// the volumes beside that is run meanwhile, and waited for before they are closed.
func (v *csiVolumes) run(ctx context.Context, beside ...func(context.Context)) error {
	defer v.drivers.Close()
	defer v.volumes.Close()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() { v.republish(ctx) })
	if v.own != nil {
		wait.Go(func() { v.own.run(ctx, v.drivers) })
	}
	for _, fn := range beside {
		wait.Go(func() { fn(ctx) })
	}
	return v.drivers.Run(ctx)
}

// republishEvery is how often a driver gets to publish volumes again that wants to (requiresRepublish), about as under
// kubelet.
const republishEvery = time.Minute

// republish has pods bring their volumes up to date, as long as some of them have drivers that want that.
func (v *csiVolumes) republish(ctx context.Context) {
	every(ctx, republishEvery, func() {
		for _, s := range v.volumes.List() {
			if len(s.Uses) > 0 && (v.republishes(desired.File, s.Driver) || v.republishes(desired.API, s.Driver)) {
				v.ring()
				return
			}
		}
	})
}

// republishes says whether a driver wants the volumes of pods of an origin to be published again.
func (v *csiVolumes) republishes(of desired.Origin, driver string) bool {
	o, err := v.object(of, driver)
	return err == nil && o.Spec.RequiresRepublish != nil && *o.Spec.RequiresRepublish
}

// Renews says whether a driver wants to publish a volume of the pod again. Inline volumes are brought up to date in any
// case.
func (v *csiVolumes) Renews(p *corev1.Pod) bool {
	for i := range p.Spec.Volumes {
		one := &p.Spec.Volumes[i]
		if one.PersistentVolumeClaim == nil && one.Ephemeral == nil {
			continue
		}
		if pv := v.bound(p, one); pv != nil && pv.Spec.CSI != nil && v.republishes(desired.OriginOf(p), pv.Spec.CSI.Driver) {
			return true
		}
	}
	return false
}

// csiPlugins are those of the registration directory.
type csiPlugins struct{ drivers *csi.Drivers }

// Register implements plugin.Handler.
func (c csiPlugins) Register(ctx context.Context, p plugin.Plugin) error {
	return c.drivers.Register(ctx, csi.Registration{Name: p.Name, Endpoint: p.Endpoint, Versions: p.Versions})
}

// Deregister implements plugin.Handler.
func (c csiPlugins) Deregister(p plugin.Plugin) { c.drivers.Deregister(p.Name, p.Endpoint) }

// Forget implements plugin.Handler.
func (c csiPlugins) Forget(p plugin.Plugin) { c.drivers.Forget(p.Name, p.Endpoint) }

// csiToPurge is what the volumes of pods that are purged are taken away with: the drivers that have them are waited
// for, a while. The zero value is of a place that has none. End may be called again.
func csiToPurge(ctx context.Context, p config.Place, l config.LocalCSI, log *slog.Logger) (v *csiVolumes, end func() error, err error) {
	none := func() error { return nil }
	if _, err := os.Stat(filepath.Join(p.RootDir, csiDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, none, nil
	}
	if v, err = openCSI(csiSettings{place: p, csi: config.CSI{Local: l}}, new(object.Stores), log); err != nil {
		return nil, none, err
	}
	watch := plugin.New(plugin.Config{
		Dir: filepath.Join(p.KubeletDir, pluginDir), Log: log,
		Handlers: map[string]plugin.Handler{registerapi.CSIPlugin: csiPlugins{v.drivers}},
	})
	running, cancel := context.WithCancel(ctx)
	g, running := errgroup.WithContext(running)
	g.Go(func() error { return v.run(running) })
	if len(v.volumes.List()) > 0 {
		g.Go(func() error { return watch.Run(running) })
		v.awaitDrivers(ctx)
	}
	return v, func() error { cancel(); return g.Wait() }, nil
}

// awaitDrivers returns when all drivers of volumes are there, or too late.
func (v *csiVolumes) awaitDrivers(ctx context.Context) {
	late := time.After(purgeWait)
	for {
		missing := false
		for _, s := range v.volumes.List() {
			_, err := v.drivers.Get(s.Driver)
			missing = missing || err != nil
		}
		if !missing {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-v.changed:
		}
	}
}

// removeCSI removes the records and directories of a place that has no volumes of drivers any more.
func removeCSI(ctx context.Context, p config.Place, v *csiVolumes) error {
	if v == nil {
		return nil
	}
	if left := v.volumes.List(); len(left) > 0 {
		return fmt.Errorf("volume %s of CSI driver %s is still on the node: %s", left[0].Name, left[0].Driver, left[0].Error)
	}
	if why := v.volumes.Problems(); len(why) > 0 { // what is mounted for it would be known to nobody
		return fmt.Errorf("%s: look at what it is of, unmount that, and remove the record", why[0])
	}
	errs := []error{filetree.RemoveAll(ctx, filepath.Join(p.RootDir, csiDir))}
	for _, d := range []string{"csi/volumeDevices/publish", "csi/volumeDevices/staging", "csi/volumeDevices", "csi", ""} {
		errs = append(errs, rmdir(filepath.Join(p.RootDir, driverDir, "kubernetes.io", d)))
	}
	return errors.Join(append(errs, rmdir(filepath.Join(p.RootDir, driverDir)))...)
}
