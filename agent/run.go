package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/internal/resident"
)

// Run runs the node's pods and serves the API until ctx ends and all that was started here has ended. The pods go on.
func (a *Agent) Run(ctx context.Context) error {
	defer a.groups.Close()
	defer a.stats.Close()
	srv, err := a.listen(ctx)
	if err != nil {
		return err
	}
	a.server.Store(srv)
	g, ctx := errgroup.WithContext(ctx)
	a.heedShutdown(ctx, g)
	found, wanted, provided := make(chan desired.Update), make(chan desired.Update), make(chan desired.Update)
	g.Go(func() error { return ended(ctx, "read manifests", a.manifests.source.Run(ctx, found)) })
	cluster := a.member.run(ctx, g, a.read)
	g.Go(func() error { a.pass(ctx, found, cluster, wanted); return nil })
	g.Go(func() error {
		return ended(ctx, "provision volumes", a.managers.provisioner.run(ctx, wanted, provided))
	})
	g.Go(func() error { return ended(ctx, "run pods", a.pods.Run(ctx, provided)) })
	a.runDevices(ctx, g)
	a.managers.runIssued(ctx, g)
	g.Go(func() error { a.classes.run(ctx, a.read); return nil })
	g.Go(func() error {
		a.kills.Run(ctx)
		return nil
	})
	g.Go(func() error { a.settle(ctx); return nil })
	g.Go(func() error { a.ring.Run(ctx); return nil })
	g.Go(func() error { a.watchDrift(ctx); return nil })
	g.Go(func() error { a.rotateLogs(ctx); return nil })
	g.Go(func() error { a.room.collect(ctx); return nil })
	g.Go(func() error { a.removeOrphans(ctx); return nil })
	g.Go(func() error { a.evictions.run(ctx, a.read); return nil })
	srv.Run(ctx, g)
	return g.Wait()
}

// ended is the error of a part that has ended: none when it was told to.
func ended(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return fmt.Errorf("%s: ended by itself", what)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// settle gives the memory that a burst of pods took back to the machine. The Go runtime would do so too, but only in
// part, and for an agent that idles nearly always the rest would be most of its size.
func (a *Agent) settle(ctx context.Context) {
	quiet := time.NewTimer(settleAfter)
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		// It ends with ctx.
		_ = a.pods.Watch(ctx, func(watch.EventType, *corev1.Pod) error {
			quiet.Reset(settleAfter)
			return nil
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-quiet.C:
			debug.FreeOSMemory()
			if err := resident.DropProgram(); err != nil {
				a.log.Debug("more of the program stays mapped than is used", "error", err)
			}
		}
	}
}

// healthy is an error until the manifests have been read, and while the runtime says that it is not ready. That the
// network is not ready is not the agent's illness: pods on the host's network run, and the others wait for it.
func (a *Agent) healthy() error {
	if !a.synced.Load() {
		return errors.New("the manifests are being read")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := a.cfg.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask the runtime: %w", err)
	}
	for _, c := range resp.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("the runtime is not ready: %s", c.GetMessage())
		}
	}
	return nil
}

// Alive is nil as long as the agent's parts answer. It hangs when they do, which is as telling.
func (a *Agent) Alive(context.Context) error {
	a.pods.List()
	a.manifests.source.Problems()
	return nil
}
