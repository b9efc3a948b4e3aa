package agent

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/shutdown"
)

// heedShutdown gives pods time to end when the machine is shut down, where that was asked for.
func (a *Agent) heedShutdown(ctx context.Context, g *errgroup.Group) {
	periods, err := a.cfg.Periods()
	if err != nil || len(periods) == 0 {
		return
	}
	down := shutdown.New(shutdown.Config{Periods: periods, Pods: a.pods, Boot: pod.BootID(), Log: a.log})
	down.Ask(ctx)
	g.Go(func() error { down.Run(ctx); return nil })
}
