package agent

import (
	"context"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/drift"
	"github.com/berth-node/berth/cgroups/kube"
)

// watchDrift looks after the groups of pods until ctx ends, where that is wanted.
func (a *Agent) watchDrift(ctx context.Context) {
	if a.cfg.CgroupDrift == config.DriftOff {
		return
	}
	drift.Watch(ctx, drift.Config{
		Tree: a.tree, Unlimited: a.withoutQuota(), Correct: a.cfg.CgroupDrift == config.DriftCorrect,
		Pods: a.pods, Pins: a.pins, Classes: givenClasses{&a.classes}, Events: a.events, Log: a.log,
	})
}

// givenClasses is what the classes were given, for who compares them.
type givenClasses struct{ c *classes }

// Given implements [drift.Classes].
func (g givenClasses) Given(fn func([]kube.Wanted) error) error {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return fn(g.c.given)
}

// Changed implements [drift.Classes].
func (g givenClasses) Changed() <-chan struct{} { return g.c.changed }
