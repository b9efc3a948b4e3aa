package agent

import (
	"context"
	"path/filepath"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/server"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/pod"
)

// checkpointDir is where checkpoints of containers go in the root directory.
const checkpointDir = "checkpoints"

// listen opens what the API is served on.
func (a *Agent) listen(ctx context.Context) (*server.Server, error) {
	c := server.Config{
		Server: a.cfg.Server, RunDir: a.cfg.RunDir, NodeName: a.cfg.NodeName, Addresses: a.addresses, Authority: a.authority, Log: a.log,
	}
	if a.member != nil {
		c.Cluster = a.member.client.Config()
		if s := a.member.client.Serving(); s != nil {
			c.Certificate = s.Certificate
		}
	}
	return server.Open(ctx, c, api.New(a.apiConfig()))
}

// Reload takes over what can change while the agent runs: who may do what.
func (a *Agent) Reload(c config.Config) error {
	rules, err := c.Rules()
	if err != nil {
		return err
	}
	if s := a.server.Load(); s != nil {
		s.Allow(rules)
	}
	return nil
}

// apiConfig is what the API shows.
func (a *Agent) apiConfig() api.Config {
	prune := &pruner{pods: a.pods, left: pod.NewPruner(a.pods), images: a.room.images, synced: a.synced.Load, log: a.log}
	c := api.Config{
		Pods: a.pods, Changes: a.pods, Events: a.ring, Runtime: a.cfg.Runtime,
		File: a.manifests.files.get, Problems: a.manifests.problems, Timing: a.pods.Timing,
		Healthy: a.healthy, Metrics: a.metrics(), Stats: a.stats, Images: a.cfg.Images, Prune: prune.prune, Log: a.log,
		Shortage: api.Shortage{Eviction: a.evictions.view, Kills: a.kills}, Volumes: shownVolumes{a.managers.csi, a.managers.provisioner.m},
		CheckpointDir: filepath.Join(a.cfg.RootDir, checkpointDir), Profiling: a.cfg.Profiling, Node: api.Node{Configz: a.cfg.Configz},
	}
	if a.cfg.SystemLogs {
		c.SystemLogs = "/var/log"
	}
	if a.member != nil {
		c.Node.Cluster = func() any { return a.member.client.State() }
	}
	if a.authority != nil && a.member == nil {
		c.Authority = a.authority
	}
	return c
}
