// Package nri calls plugins of the Node Resource Interface at what happens to pods and containers, and does to a
// container's specification what they ask for.
//
// The protocol, the order of plugins, conflicts between them and their end are the published adaptation library's. A
// plugin that crashes or does not answer in time is let go, and what it was asked goes on without it.
package nri

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/ttrpc"
)

// Config says where plugins come from.
type Config struct {
	Socket    string // that plugins connect to; "" = none may
	PluginDir string // of plugins that are started with the runtime
	ConfigDir string // of their configuration
	Version   string // of the runtime
	// How long a plugin may take to register once it is connected (0 = 5 s), to answer a call (0 = 2 s), and the first
	// one, which tells it of all that there is (0 = 30 s, never less than for others).
	RegistrationTimeout, RequestTimeout, SynchronizeTimeout time.Duration
	Log                                                     *slog.Logger
}

// Runtime is what plugins want of the runtime beside being called.
type Runtime interface {
	// PluginState tells a plugin that has just come what there is.
	PluginState(ctx context.Context) ([]*api.PodSandbox, []*api.Container)
	// PluginUpdate changes the resources of containers, and returns what it could not.
	PluginUpdate(ctx context.Context, updates []*api.ContainerUpdate) []*api.ContainerUpdate
	// PluginEvict stops containers. It does not wait for their end.
	PluginEvict(evictions []*api.ContainerEviction)
}

// Plugins are those that are connected now. A nil one has none, and costs nothing.
type Plugins struct {
	a     *adaptation.Adaptation
	log   *slog.Logger
	count atomic.Int32
	named *name // nil: nobody can connect
}

// Start starts the plugins of the directory, and lets others connect.
func Start(c Config, rt Runtime) (*Plugins, error) {
	p := &Plugins{log: c.Log}
	request := cmp.Or(c.RequestTimeout, adaptation.DefaultPluginRequestTimeout)
	sync := func(ctx context.Context, tell adaptation.SyncCB) error {
		pods, containers := rt.PluginState(ctx)
		// A plugin is told of all pods at once, and may look at each. The library knows one time for all that it asks,
		// and takes it when it begins; no pod is made meanwhile.
		adaptation.SetPluginRequestTimeout(max(cmp.Or(c.SynchronizeTimeout, 30*time.Second), request))
		updates, err := tell(ctx, pods, containers)
		adaptation.SetPluginRequestTimeout(request)
		if err != nil {
			return err
		}
		p.apply(ctx, rt, updates)
		return nil
	}
	update := func(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return rt.PluginUpdate(ctx, updates), nil
	}
	opts := []adaptation.Option{
		adaptation.WithPluginPath(c.PluginDir), adaptation.WithPluginConfigPath(c.ConfigDir), adaptation.WithMetrics(p),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{evicting(rt, c.Log)}, nil),
	}
	// The library has one of each for the whole process.
	adaptation.SetPluginRegistrationTimeout(cmp.Or(c.RegistrationTimeout, adaptation.DefaultPluginRegistrationTimeout))
	adaptation.SetPluginRequestTimeout(request)
	err := free(c.Socket)
	switch {
	case c.Socket == "":
		opts = append(opts, adaptation.WithDisabledExternalConnections())
	case err != nil:
		// Two runtimes on a machine are no reason not to run pods.
		c.Log.Warn("NRI plugins cannot connect", "socket", c.Socket, "error", err)
		opts = append(opts, adaptation.WithDisabledExternalConnections())
	default:
		p.named = newName(c.Socket)
		opts = append(opts, adaptation.WithSocketPath(p.named.own))
	}
	if p.a, err = adaptation.New("berth", c.Version, sync, update, opts...); err != nil {
		return nil, fmt.Errorf("start NRI: %w", err)
	}
	err = p.a.Start()
	if err == nil && p.named != nil {
		err = p.named.keep(c.Log)
	}
	if err != nil {
		p.a.Stop()
		return nil, fmt.Errorf("start NRI: %w", err)
	}
	return p, nil
}

func (p *Plugins) apply(ctx context.Context, rt Runtime, updates []*api.ContainerUpdate) {
	if len(updates) == 0 {
		return
	}
	for _, u := range rt.PluginUpdate(ctx, updates) {
		p.log.Warn("update that an NRI plugin has asked for is not done", "id", u.GetContainerId())
	}
}

// Close ends the plugins that were started here, and lets go of the others.
func (p *Plugins) Close() error {
	if p == nil {
		return nil
	}
	var err error
	if p.named != nil {
		err = p.named.end()
	}
	p.a.Stop()
	return err
}

// Active says whether there is any plugin to be told.
func (p *Plugins) Active() bool { return p != nil && p.count.Load() > 0 }

// Hold keeps new plugins waiting until release is called, so that each learns of a thing either from what there is when
// it comes or from an event, and never not at all. Who holds must not hold again.
func (p *Plugins) Hold() (release func()) {
	if p == nil {
		return func() {}
	}
	return p.a.BlockPluginSync().Unblock
}

// Calls are the library's own, for who has asked [Plugins.Active].
func (p *Plugins) Calls() *adaptation.Adaptation { return p.a }

// The rest is what the library tells of its plugins.

// UpdatePluginCount is called when plugins come and go.
func (p *Plugins) UpdatePluginCount(n int) { p.count.Store(int32(min(n, 1<<20))) }

// RecordPluginInvocation is called after each call.
func (p *Plugins) RecordPluginInvocation(plugin, operation string, err error) {
	if err != nil {
		p.log.Warn("NRI plugin has failed", "plugin", plugin, "call", operation, "error", err)
	}
}

// RecordPluginLatency is called after each call.
func (p *Plugins) RecordPluginLatency(plugin, operation string, d time.Duration) {
	p.log.Debug("NRI plugin was called", "plugin", plugin, "call", operation, "took", d)
}

// RecordPluginAdjustments is called with what a plugin asks for.
func (*Plugins) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

type logger struct{ log *slog.Logger }

// LogTo sends what the library logs to log. It is for the program to call, before anything else here, since the library
// has one logger for the whole process.
func LogTo(log *slog.Logger) { nrilog.Set(logger{log.With("from", "nri")}) }

func (l logger) Debugf(ctx context.Context, f string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(f, args...))
}

func (l logger) Infof(ctx context.Context, f string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(f, args...))
}

func (l logger) Warnf(ctx context.Context, f string, args ...any) {
	l.log.WarnContext(ctx, fmt.Sprintf(f, args...))
}

func (l logger) Errorf(ctx context.Context, f string, args ...any) {
	l.log.ErrorContext(ctx, fmt.Sprintf(f, args...))
}

var (
	_ adaptation.Metrics = (*Plugins)(nil)
	_ nrilog.Logger      = logger{}
)
