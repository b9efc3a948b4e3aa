// Package garbagecollector deletes objects whose owners are gone, in the order that who deletes an owner asks for: the
// dependents afterwards, before it, or not at all. It knows of all kinds that are served, by their metadata alone.
package garbagecollector

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 8
	// After a change of what is served, discovery tells of it a little later.
	soon  = 200 * time.Millisecond
	later = 5 * time.Second
	// learnEvery is how often it is asked for without a change that is told of: an aggregated server has kinds of its
	// own, and nobody tells of those.
	learnEvery = time.Minute
	// learnAgain is how soon it is asked for again when not all of it was answered.
	learnAgain = 10 * time.Second
	// syncStep is how often it is asked whether a kind that does not answer has been waited for long enough.
	syncStep = time.Second
)

// Deps are what the controller works with.
type Deps struct {
	Metadata  metadata.Interface
	Discovery discovery.ServerResourcesInterface
	Events    record.EventRecorder
	Log       *slog.Logger
}

type garbage struct {
	deps     Deps
	kinds    *kinds
	monitors *monitors
	loop     *controller.Loop[types.UID]
	changed  chan struct{}
	listed   chan struct{}
}

// New makes the controller.
func New(d Deps) controller.Controller {
	g := &garbage{deps: d, kinds: &kinds{}, changed: make(chan struct{}, 1), listed: make(chan struct{}, 1)}
	graph := newGraph()
	g.monitors = &monitors{
		objects: d.Metadata, graph: graph, look: func(uid types.UID) { g.loop.Add(uid) }, changed: g.ask, listed: func() { signal(g.listed) }, log: d.Log,
		all: map[schema.GroupKind]*monitor{},
	}
	a := &api{objects: d.Metadata, events: d.Events, kinds: g.kinds, synced: g.monitors.synced, told: map[[2]types.UID]struct{}{}}
	c := newCollector(graph, a, func(uid types.UID) { g.loop.Add(uid) })
	g.loop = controller.NewLoop(d.Log, workers, c.sync).Of(graph.space)
	return g
}

// ask has what is served asked for soon.
func (g *garbage) ask() { signal(g.changed) }

// signal has who waits look, once for any number of signals.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run implements [controller.Controller].
func (g *garbage) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer g.monitors.stop()
	defer cancel()
	group.Go(func() { g.learn(ctx) })
	// What is not known yet would be taken for something that is not there, and be looked for one by one.
	for !g.kinds.known() || !g.monitors.synced() {
		select {
		case <-ctx.Done():
			return
		case <-g.listed:
		case <-time.After(syncStep):
		}
	}
	g.loop.Run(ctx)
}

// learn follows which kinds are served.
func (g *garbage) learn(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	again := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.changed:
			wait.Reset(soon)
			again = true
			continue
		case <-wait.C:
		}
		fresh, err := g.kinds.learn(g.deps.Discovery)
		if err != nil {
			g.deps.Log.Warn("not all that is served is known", "error", err)
		}
		if g.kinds.known() {
			g.monitors.follow(ctx, g.kinds.watched())
		}
		if len(fresh) > 0 {
			g.monitors.tell(g.monitors.graph.of(fresh))
		}
		next := learnEvery
		switch {
		case again:
			next, again = later, false
		case err != nil:
			next = learnAgain
		}
		wait.Reset(next)
	}
}
