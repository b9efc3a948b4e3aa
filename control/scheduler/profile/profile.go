// Package profile runs the plugins of one profile of the scheduler, phase by phase, and is what plugins call back.
package profile

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/queue"
)

// Factory makes a plugin of its arguments, which may be nil.
type Factory = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error)

// Options are what a profile is made of.
type Options struct {
	// Name is the scheduler that pods name.
	Name string
	// Plugins are those enabled, for all phases and for single ones, and Args what they are made with.
	Plugins *configv1.Plugins
	Args    map[string]runtime.Object
	// Registry has the plugins that there are.
	Registry map[string]Factory
	Shared   *Shared
	// Recorder tells of events in the profile's name.
	Recorder events.EventRecorderLogger
	Log      *slog.Logger
}

// Profile is the plugins of one scheduler's name.
type Profile struct {
	name    string
	points  *points
	weights []int64
	signers []fwk.SignPlugin
	plugins []fwk.Plugin
	far     []Far // of these
	handle  *Handle
	shared  *Shared
	tells   events.EventRecorderLogger
	log     *slog.Logger
}

var _ fwk.PluginsRunner = (*Profile)(nil)

// New makes the plugins of a profile.
func New(ctx context.Context, o Options) (*Profile, error) {
	p := &Profile{name: o.Name, shared: o.Shared, tells: o.Recorder, log: o.Log}
	p.handle = newHandle(p, o.Shared)
	made := map[string]fwk.Plugin{}
	for _, name := range referred(o.Plugins) {
		factory := o.Registry[name]
		if factory == nil {
			return nil, fmt.Errorf("make profile %q: there is no plugin %q", o.Name, name)
		}
		plugin, err := factory(ctx, o.Args[name], p.handle)
		if err != nil {
			return nil, fmt.Errorf("make plugin %q of profile %q: %w", name, o.Name, err)
		}
		made[name] = plugin
		p.plugins = append(p.plugins, plugin)
		if far, ok := plugin.(Far); ok {
			p.far = append(p.far, far)
		}
	}
	var err error
	if p.points, err = arrange(o.Plugins, made); err != nil {
		return nil, fmt.Errorf("make profile %q: %w", o.Name, err)
	}
	p.signers = signers(p.points)
	if p.weights, err = weights(o.Plugins, p.points); err != nil {
		return nil, fmt.Errorf("make profile %q: %w", o.Name, err)
	}
	if n := len(p.points.queueSort); n != 1 {
		return nil, fmt.Errorf("make profile %q: plugins.queueSort: %d plugins sort the queue, and one has to", o.Name, n)
	}
	if len(p.points.bind) == 0 {
		return nil, fmt.Errorf("make profile %q: plugins.bind: no plugin binds pods", o.Name)
	}
	return p, nil
}

// Name is the scheduler's.
func (p *Profile) Name() string { return p.name }

// Handle is what plugins call back.
func (p *Profile) Handle() fwk.Handle { return p.handle }

// QueueSort is the plugin that has the queue in order.
func (p *Profile) QueueSort() fwk.QueueSortPlugin { return p.points.queueSort[0] }

// PreEnqueue are the plugins that say whether a pod may come to the queue.
func (p *Profile) PreEnqueue() []fwk.PreEnqueuePlugin { return p.points.preEnqueue }

// Has says whether a plugin runs, at any phase.
func (p *Profile) Has(name string) bool {
	return slices.ContainsFunc(p.plugins, func(plugin fwk.Plugin) bool { return plugin.Name() == name })
}

// Scores says whether nodes are compared at all.
func (p *Profile) Scores() bool { return len(p.points.score) > 0 }

// Hints are the events that plugins want pods they have rejected to be attempted again for. One that says nothing of
// events may have rejected them for anything.
func (p *Profile) Hints(ctx context.Context) ([]queue.Hint, error) {
	var hints []queue.Hint
	for _, plugin := range p.plugins {
		e, ok := plugin.(fwk.EnqueueExtensions)
		if !ok {
			hints = append(hints, queue.Hint{Plugin: plugin.Name(), Event: fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}})
			continue
		}
		events, err := e.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("read events of plugin %q: %w", plugin.Name(), err)
		}
		for _, event := range events {
			hints = append(hints, queue.Hint{
				Plugin: plugin.Name(), Event: event.Event, Worth: event.QueueingHintFn, Among: event.PreQueueingHintFn,
			})
		}
	}
	return hints, nil
}

// took tells how long a phase has taken that began at some time, and how it has ended.
func took(p *Profile, point string, began time.Time, status **fwk.Status) {
	p.shared.Metrics.Point(point, (*status).Code().String(), p.name, time.Since(began))
}
