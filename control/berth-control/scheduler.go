package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/scheduler"
	"github.com/berth-node/berth/control/scheduler/config"
	"github.com/berth-node/berth/control/scheduler/metrics"
	"github.com/berth-node/berth/control/scheduler/note"
	"github.com/berth-node/berth/control/scheduler/registry"
)

// schedulerLease is what one of several members has its scheduler run by: Kubernetes' own, so that one beside them
// which is elected, too, does not run while ours does.
const schedulerLease = "kube-scheduler"

// schedulerUser is as whom the scheduler acts.
const schedulerUser = "system:kube-scheduler"

// schedulerFlags are those of serve that are about the scheduler.
type schedulerFlags struct {
	on     bool
	file   string
	config *config.Config
	groups bool // that the API has groups of pods
	// metrics hear of what the scheduler does; nil: nobody does.
	metrics *metrics.Metrics
}

func (f *schedulerFlags) add(p *pflag.FlagSet) {
	p.BoolVar(&f.on, "scheduler", true, "give pods nodes; false: another scheduler does")
	f.addFile(p)
}

func (f *schedulerFlags) addFile(p *pflag.FlagSet) {
	p.StringVar(&f.file, "scheduler-config", "", "file with a KubeSchedulerConfiguration; Kubernetes' defaults, if empty")
}

func (f *schedulerFlags) check() error {
	if f.file == "" {
		var err error
		f.config, err = config.Default(registry.Default())
		return err
	}
	data, err := os.ReadFile(f.file)
	if err == nil {
		f.config, err = config.Read(data, registry.Default())
	}
	if err != nil {
		return fmt.Errorf("read --scheduler-config %s: %w", f.file, err)
	}
	return nil
}

// planner has a scheduler run, whenever this member is the one.
type planner struct {
	flags    schedulerFlags
	elect    bool
	identity string
	rest     *rest.Config
	client   kubernetes.Interface
	inside   informers.SharedInformerFactory
	log      *slog.Logger
}

// newScheduler makes what has the scheduler run. One that cannot be made by its configuration is an error at the start.
func newScheduler(ctx context.Context, server *apiserver.Server, o apiserver.Options, f *serveFlags) (*planner, error) {
	host, _ := os.Hostname() // for who reads the lease
	inside := server.Inside()
	p := &planner{
		flags: f.scheduler, elect: f.member.Address != "" || len(f.etcd.Endpoints) > 0, identity: host + "_" + string(uuid.NewUUID()),
		rest: asScheduler(inside.Config), inside: inside.Informers, log: o.Log.With("component", "scheduler"),
	}
	p.flags.groups = f.versions.groups()
	if !p.flags.on {
		return p, nil
	}
	var err error
	p.flags.metrics = metrics.New(global{})
	if p.client, err = kubernetes.NewForConfig(p.rest); err != nil {
		return nil, fmt.Errorf("make client of scheduler: %w", err)
	}
	broadcaster := events.NewBroadcaster(nil)
	defer broadcaster.Shutdown()
	if _, err := makeScheduler(ctx, p.flags, p.client, p.rest, p.informers(), broadcaster, p.log); err != nil {
		return nil, err
	}
	return p, nil
}

// global is the registry of the process, which the API server serves at /metrics.
type global struct{}

// MustRegister implements [metrics.Registry].
func (global) MustRegister(all ...basemetrics.Registerable) { legacyregistry.MustRegister(all...) }

// CustomMustRegister implements [metrics.Registry].
func (global) CustomMustRegister(all ...basemetrics.StableCollector) {
	legacyregistry.CustomMustRegister(all...)
}

// asScheduler is the way in with the scheduler's rights, and without a limit to how often it calls: each of its calls
// gives a pod a node.
func asScheduler(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.Impersonate = rest.ImpersonationConfig{UserName: schedulerUser}
	c.UserAgent = "berth-control/scheduler"
	c.QPS = -1
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	return c
}

func makeScheduler(
	ctx context.Context, c schedulerFlags, client kubernetes.Interface, r *rest.Config, f informers.SharedInformerFactory,
	broadcaster events.EventBroadcaster, log *slog.Logger,
) (*scheduler.Scheduler, error) {
	return scheduler.New(ctx, scheduler.Options{
		Config: c.config, PodGroups: c.groups, Metrics: c.metrics, Registry: registry.Factories(), Client: client, REST: r, Informers: f, Log: log,
		Recorder: func(name string) events.EventRecorderLogger {
			return note.NewRecorder(broadcaster.NewRecorder(scheme.Scheme, name), scheme.Scheme)
		},
	})
}

// Run has the scheduler run until ctx ends.
func (p *planner) Run(ctx context.Context) error {
	if !p.flags.on {
		<-ctx.Done()
		return nil
	}
	core := p.inside.Core().V1()
	for _, i := range []cache.SharedIndexInformer{core.Pods().Informer(), core.Nodes().Informer(), core.Namespaces().Informer()} {
		i.HasSynced()
	}
	p.inside.StartWithContext(ctx)
	if !p.elect {
		p.lead(ctx)
		return nil
	}
	return controller.Election{Client: p.client, Lease: schedulerLease, Identity: p.identity, Log: p.log}.Run(ctx, p.lead)
}

// lead has the scheduler run for one term.
func (p *planner) lead(ctx context.Context) {
	broadcaster := events.NewBroadcaster(note.NewSink(&events.EventSinkImpl{Interface: p.client.EventsV1()}))
	defer broadcaster.Shutdown()
	f := p.informers()
	s, err := makeScheduler(ctx, p.flags, p.client, p.rest, f, broadcaster, p.log)
	if err == nil {
		err = broadcaster.StartRecordingToSinkWithContext(ctx)
	}
	if err != nil {
		p.log.Error("scheduler does not run", "error", err)
		<-ctx.Done()
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer f.Shutdown()
	defer stop()
	f.StartWithContext(ctx)
	p.log.Info("scheduler runs", "profiles", len(p.flags.config.Profiles))
	s.Run(ctx)
}

// informers are those of one term. What the API server watches anyway is not watched twice.
func (p *planner) informers() informers.SharedInformerFactory {
	f := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithTransform(controller.WithoutManagers))
	core := p.inside.Core().V1()
	for o, i := range map[runtime.Object]cache.SharedIndexInformer{
		&corev1.Pod{}: core.Pods().Informer(), &corev1.Node{}: core.Nodes().Informer(), &corev1.Namespace{}: core.Namespaces().Informer(),
	} {
		f.InformerFor(o, controller.Borrowed(i))
	}
	return f
}
