package agent

import (
	"context"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/drift"
)

// watchDrift looks after the groups of pods until ctx ends, where that is wanted.
func (a *Agent) watchDrift(ctx context.Context) {
	if a.cfg.CgroupDrift == config.DriftOff {
		return
	}
	drift.Watch(ctx, drift.Config{
		Tree: a.tree, Unlimited: a.withoutQuota(), Correct: a.cfg.CgroupDrift == config.DriftCorrect,
		Pods: a.pods, Pins: a.managers.pins, Classes: a.classes, Events: a.events, Log: a.log,
	})
}
