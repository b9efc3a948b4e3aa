package cri

import (
	"context"
	"log/slog"

	"github.com/containerd/nri/pkg/api"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/sandbox"
)

// openPlugins starts them, when all pods are known.
func (r *core) openPlugins() error {
	c := r.cfg.NRI
	if c == nil {
		return nil
	}
	cfg := *c
	cfg.Version, cfg.Log = runtimeVersion, r.log
	end, err := r.host.Plugins.Start(cfg, pluginRuntime{r.pods, r.ctrs, r.log})
	if err != nil {
		return err
	}
	r.closers = append(r.closers, end)
	return nil
}

// pluginRuntime is the runtime as plugins see it.
type pluginRuntime struct {
	pods *sandbox.Sandboxes
	ctrs *container.Containers
	log  *slog.Logger
}

// PluginState is all pods that are ready, and the containers there are.
func (r pluginRuntime) PluginState(context.Context) ([]*api.PodSandbox, []*api.Container) {
	var pods []*api.PodSandbox
	for _, sb := range r.pods.Table.ByID.All(sandbox.Newest) {
		if sb.State() == sandbox.Ready {
			pods = append(pods, sb.ForPlugins())
		}
	}
	return pods, r.ctrs.ForPlugins()
}

// PluginUpdate makes the changes that plugins ask for, each as far as it can.
func (r pluginRuntime) PluginUpdate(ctx context.Context, updates []*api.ContainerUpdate) []*api.ContainerUpdate {
	return r.ctrs.Updater.ApplyUpdates(ctx, updates)
}

// PluginEvict stops containers that plugins want to have ended. Whether they are started again is up to who runs the
// pod. A plugin asks in answer to an event, and who waits for that must not wait for the end of another container too.
func (r pluginRuntime) PluginEvict(evictions []*api.ContainerEviction) {
	for _, e := range evictions {
		if !r.ctrs.Evict(e.GetContainerId(), e.GetReason()) {
			r.log.Warn("NRI plugin evicts a container that is not there", "id", e.GetContainerId(), "reason", e.GetReason())
		}
	}
}
