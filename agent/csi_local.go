package agent

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/local"
)

// localDir is the data directory of the agent's own driver, in the root directory.
const localDir = "csi-local"

// localEndpoint is shown where other drivers have their socket.
const localEndpoint = "agent"

// localDriver is the agent's own CSI driver. It starts when somebody asks for it, or when it has volumes: who has none
// pays nothing.
type localDriver struct {
	cfg    local.Config
	wanted chan struct{}
	log    *slog.Logger
}

func newLocalDriver(root string, c *csiSettings, log *slog.Logger) *localDriver {
	return &localDriver{
		cfg: local.Config{
			DataDir: filepath.Join(root, localDir), NodeID: cmp.Or(c.node, "node"), Version: c.version,
			Overcommit: c.csi.Local.Overcommit, VolumeGroup: c.csi.Local.VolumeGroup, ThinPool: c.csi.Local.ThinPool, Log: log,
		},
		wanted: make(chan struct{}, 1), log: log,
	}
}

// want has the driver start.
func (l *localDriver) want() {
	select {
	case l.wanted <- struct{}{}:
	default:
	}
}

// Between two tries to start the driver.
const (
	localPauseMin = time.Second
	localPauseMax = time.Minute
)

// run has the driver be one of the node's from when it is wanted until ctx ends.
func (l *localDriver) run(ctx context.Context, drivers *csi.Drivers) {
	if !local.Used(l.cfg.DataDir) {
		select {
		case <-ctx.Done():
			return
		case <-l.wanted:
		}
	}
	for pause := localPauseMin; ; pause = min(2*pause, localPauseMax) {
		err := l.serve(ctx, drivers)
		if ctx.Err() != nil {
			return
		}
		l.log.Error("the agent's own CSI driver is not there", "driver", local.Name, "error", err, "again-in", pause)
		drivers.Refuse(csi.Refusal{Name: local.Name, Endpoint: localEndpoint, Why: err.Error()})
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// serve has the driver be one of the node's until ctx ends or it fails.
func (l *localDriver) serve(ctx context.Context, drivers *csi.Drivers) error {
	d, err := local.Open(ctx, l.cfg)
	if err != nil {
		return err
	}
	defer d.Close()
	// It answers until nobody calls it any more.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	inside, ended := local.NewInside(), make(chan error, 1)
	var served sync.WaitGroup
	served.Go(func() { ended <- d.ServeOn(serving, inside) })
	defer served.Wait()
	defer stop()
	r := csi.Registration{Name: local.Name, Endpoint: localEndpoint, Versions: []string{"1.0.0"}, Dial: inside.Dial}
	if err := drivers.Register(ctx, r); err != nil {
		return err
	}
	defer drivers.Deregister(local.Name, localEndpoint)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	}
}

// object is the CSIDriver object of a driver, for pods of an origin. The agent's own needs none in the manifests, and
// one that is there counts.
func (v *csiVolumes) object(of desired.Origin, name string) (*storagev1.CSIDriver, error) {
	o, err := v.objects.Of(of).CSIDriver(name)
	if err == nil || v.own == nil || name != local.Name {
		return o, err
	}
	yes, no, groups := true, false, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: local.Name},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &no, PodInfoOnMount: &yes, FSGroupPolicy: &groups,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		},
	}, nil
}

// leaveLocal removes what the agent's own driver has in the place, for a purge, unless it has volumes: they are their
// users'.
func leaveLocal(ctx context.Context, p config.Place, log *slog.Logger) error {
	dir := filepath.Join(p.RootDir, localDir)
	gone, err := local.Leave(ctx, dir)
	if err != nil {
		return err
	}
	if !gone {
		log.Warn("volumes of "+local.Name+" stay, with their data", "directory", dir)
		return nil
	}
	return rmdir(p.RootDir)
}
