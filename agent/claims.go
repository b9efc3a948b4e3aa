package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/dra"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

func openClaims(c *Config, labels func() map[string]string) (*dra.Manager, error) {
	return dra.New(dra.Config{File: filepath.Join(c.RootDir, claimsFile), Boot: pod.BootID(), Node: c.NodeName, Labels: labels, Log: c.Log})
}

// draPlugins are drivers of dynamic resources.
type draPlugins struct{ m *dra.Manager }

// Register implements plugin.Handler.
func (d draPlugins) Register(_ context.Context, p plugin.Plugin) error {
	return d.m.Register(p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugin.Handler.
func (d draPlugins) Deregister(p plugin.Plugin) { d.m.Deregister(p.Name, p.Endpoint) }

// Forget implements plugin.Handler: of plugins that are refused nothing is kept.
func (draPlugins) Forget(plugin.Plugin) {}

// podClaims are the devices of resource claims, which drivers prepare.
type podClaims struct {
	claims  *dra.Manager
	objects *object.Stores
}

var _ pod.NodeResource = podClaims{}

// Name implements [pod.NodeResource].
func (podClaims) Name() string { return "claims" }

// Concerns implements [pod.NodeResource].
func (c podClaims) Concerns(p *corev1.Pod) bool {
	return len(p.Spec.ResourceClaims) > 0 || c.claims.Has(p.UID)
}

// Admit has nothing against a pod: one whose claims are not there waits for them when it is prepared.
func (podClaims) Admit(*corev1.Pod, bool) error { return nil }

// Prepare has drivers prepare the pod's claims.
func (c podClaims) Prepare(ctx context.Context, p *corev1.Pod) error {
	if len(p.Spec.ResourceClaims) == 0 {
		return nil
	}
	err := c.claims.Prepare(ctx, p, func(of *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
		return c.objects.Of(desired.OriginOf(p)).ResourceClaim(p, of)
	})
	if err != nil {
		return &pod.PrepareError{Reason: plan.ReasonClaims, Event: "Failed to prepare dynamic resources: ", Err: err}
	}
	return nil
}

// Inject implements [pod.NodeResource].
func (c podClaims) Inject(_ context.Context, p *corev1.Pod, of *corev1.Container, into *spec.Injection) error {
	names, err := c.claims.CDI(p, of)
	if err != nil {
		return fmt.Errorf("resource claims: %w", err)
	}
	into.AddCDI(names...)
	return nil
}

// Health implements [pod.NodeResource].
func (c podClaims) Health(p *corev1.Pod) map[string][]corev1.ResourceStatus {
	return c.claims.Health(p)
}

// Changes implements [pod.NodeResource].
func (c podClaims) Changes() (changed, freed <-chan struct{}) {
	return c.claims.Changed(), c.claims.Freed()
}

// Release implements [pod.NodeResource].
func (c podClaims) Release(ctx context.Context, uid types.UID) error {
	if !c.claims.Has(uid) {
		return nil
	}
	return c.claims.Release(ctx, uid)
}

// Synced implements [pod.NodeResource].
func (c podClaims) Synced(here func(types.UID) bool) error { return c.claims.Synced(here) }

// purgeWait is how long drivers have to take back what they have prepared for pods that were purged.
const purgeWait = 15 * time.Second

// purgeClaims has drivers unprepare the claims that pods had. What they do not is said: nobody knows of it after that.
func purgeClaims(ctx context.Context, p config.Place, log *slog.Logger) error {
	file := filepath.Join(p.RootDir, claimsFile)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	claims, err := dra.New(dra.Config{File: file, Boot: pod.BootID(), Log: log})
	if err != nil {
		return err
	}
	if len(claims.Left()) == 0 {
		return nil
	}
	if err := claims.Synced(func(types.UID) bool { return false }); err != nil {
		return err
	}
	watch := plugin.New(plugin.Config{Dir: filepath.Join(p.KubeletDir, pluginDir), Log: log, Handlers: map[string]plugin.Handler{registerapi.DRAPlugin: draPlugins{claims}}})
	ctx, cancel := context.WithTimeout(ctx, purgeWait)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return claims.Run(ctx) })
	g.Go(func() error { return watch.Run(ctx) })
	for len(claims.Left()) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-claims.Freed():
		}
	}
	cancel()
	if left := claims.Left(); len(left) > 0 {
		log.Warn("drivers have not unprepared the claims of pods that are purged, and will not be asked again", "claims", strings.Join(left, ", "))
	}
	return g.Wait()
}
