package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/dra"
	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/agent/pod"
)

func openClaims(c *Config, labels map[string]string) (*dra.Manager, error) {
	return dra.New(dra.Config{File: filepath.Join(c.RootDir, claimsFile), Boot: pod.BootID(), Node: c.NodeName, Labels: labels, Log: c.Log})
}

// draPlugins are drivers of dynamic resources.
type draPlugins struct{ m *dra.Manager }

// Register implements plugin.Handler.
func (d draPlugins) Register(p plugin.Plugin) error {
	return d.m.Register(p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugin.Handler.
func (d draPlugins) Deregister(p plugin.Plugin) { d.m.Deregister(p.Name, p.Endpoint) }

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
