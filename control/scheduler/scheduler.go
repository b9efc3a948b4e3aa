// Package scheduler gives each pod that has none a node: it takes one pod after another from the queue, has the plugins
// of its profile choose, and binds it while it goes on with the next.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/claims"
	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/config"
	"github.com/berth-node/berth/control/scheduler/csi"
	"github.com/berth-node/berth/control/scheduler/extender"
	"github.com/berth-node/berth/control/scheduler/metrics"
	"github.com/berth-node/berth/control/scheduler/profile"
	"github.com/berth-node/berth/control/scheduler/queue"
	"github.com/berth-node/berth/control/slots"
)

// Options are what a scheduler is made of.
type Options struct {
	Config *config.Config
	// Registry has all plugins that profiles may name.
	Registry map[string]profile.Factory
	Client   kubernetes.Interface
	REST     *rest.Config
	// Informers watch what plugins look at. Who calls Run starts them when the scheduler is made.
	Informers informers.SharedInformerFactory
	// Recorder tells of events in the name of a profile.
	Recorder func(name string) events.EventRecorderLogger
	// DRA and CSI know devices and drivers of volumes; nil: what Informers know of them.
	DRA fwk.SharedDRAManager
	CSI fwk.CSIManager
	// PodGroups says that the API has groups of pods.
	PodGroups bool
	// Metrics hear of what is done; nil: nobody does.
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// Scheduler is all profiles with the queue and the cache that they share.
type Scheduler struct {
	log      *slog.Logger
	profiles map[string]*profile.Profile
	// percentages are how many of the nodes are enough for each profile.
	percentages map[string]int
	cache       *cluster.Cache
	snapshot    *cluster.Snapshot
	queue       *queue.Queue
	shared      *profile.Shared
	pods        corelisters.PodLister
	watches     watches
	writer      *writer
	groups      *cluster.Groups
	groupWriter *groupWriter // tells the API of groups
	search      search
	alike       alike
	binding     sync.WaitGroup
	writes      *slots.Slots // of bindings
	metrics     *metrics.Metrics
}

// New makes a scheduler.
func New(ctx context.Context, o Options) (*Scheduler, error) {
	s := &Scheduler{
		log: o.Log, profiles: map[string]*profile.Profile{}, percentages: map[string]int{}, cache: cluster.NewCache(), snapshot: cluster.NewEmptySnapshot(),
		pods: o.Informers.Core().V1().Pods().Lister(), writer: newWriter(o.Client, o.Log), metrics: o.Metrics,
		writes: slots.New(atOnce),
	}
	watchNewer(o.Informers)
	var groups schedulinglisters.PodGroupLister
	if o.PodGroups {
		groups = o.Informers.Scheduling().V1beta1().PodGroups().Lister()
	}
	s.groups, s.groupWriter = cluster.NewGroups(s.cache, groups), newGroupWriter(o.Client, o.Log)
	s.snapshot.SetGroups(s.groups)
	s.shared = &profile.Shared{
		Client: o.Client, Config: o.REST, Informers: o.Informers, Snapshot: s.snapshot,
		Nominator: queue.NewNominator(), Waiting: &profile.Waiting{}, Parallelism: o.Config.Parallelism, DRA: o.DRA, CSI: o.CSI, Groups: s.groups,
		Metrics: o.Metrics,
	}
	if o.CSI == nil {
		s.shared.CSI = csi.New(o.Informers)
	}
	if o.DRA == nil {
		m, err := claims.New(o.Informers)
		if err != nil {
			return nil, err
		}
		s.shared.DRA = m
	}
	for _, c := range o.Config.Extenders {
		e, err := extender.New(c)
		if err != nil {
			return nil, err
		}
		s.shared.Extenders = append(s.shared.Extenders, e)
	}
	q := queue.Options{
		PreEnqueue: map[string][]fwk.PreEnqueuePlugin{}, Hints: map[string][]queue.Hint{}, Nominator: s.shared.Nominator,
		FirstBackoff: o.Config.FirstBackoff, LastBackoff: o.Config.LastBackoff, Metrics: o.Metrics, Log: o.Log,
	}
	if err := openProfiles(ctx, s, o, &q); err != nil {
		return nil, err
	}
	s.queue = queue.New(q)
	s.shared.Queue = s.queue
	return s, s.watch(o, q.Hints)
}

// openProfiles makes the profiles, and takes from each what the queue asks it for.
func openProfiles(ctx context.Context, s *Scheduler, o Options, q *queue.Options) error {
	sorter := ""
	for _, c := range o.Config.Profiles {
		p, err := profile.New(ctx, profile.Options{
			Name: c.Name, Plugins: c.Plugins, Args: c.Args, Registry: o.Registry, Shared: s.shared, Recorder: o.Recorder(c.Name), Log: o.Log,
		})
		if err != nil {
			return err
		}
		if sorter != "" && sorter != p.QueueSort().Name() {
			return fmt.Errorf("make profile %q: plugins.queueSort: it is %s, and %s with another profile; there is one queue", c.Name, p.QueueSort().Name(), sorter)
		}
		sorter, q.Less = p.QueueSort().Name(), p.QueueSort().Less
		q.PreEnqueue[c.Name] = p.PreEnqueue()
		if q.Hints[c.Name], err = p.Hints(ctx); err != nil {
			return err
		}
		q.Hints[c.Name] = append(q.Hints[c.Name], queue.Hint{Plugin: nodesPlugin, Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}})
		if len(s.shared.Extenders) > 0 {
			// Nobody knows which event changes an extender's mind.
			q.Hints[c.Name] = append(q.Hints[c.Name], queue.Hint{Plugin: extenderPlugin, Event: queue.Wildcard("")})
		}
		s.profiles[c.Name], s.percentages[c.Name] = p, c.PercentageOfNodes
	}
	return nil
}

// Run schedules pods until ctx ends, and returns when nothing that it has started is left.
func (s *Scheduler) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Background())
	defer s.watches.stop()
	// Plugins ask informers that nobody hears of changes by, too.
	s.shared.Informers.WaitForCacheSync(ctx.Done())
	if !s.watches.start(ctx, s) {
		return
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { s.queue.Run(ctx) })
	group.Go(func() { s.writer.run(ctx) })
	group.Go(func() { s.groupWriter.run(ctx) })
	defer s.binding.Wait()
	s.metrics.Run(s.queue.Counts)
	defer s.metrics.Stop()
	for step(ctx, s) {
	}
}

// Serves says whether pods of a scheduler's name are this one's.
func (s *Scheduler) Serves(name string) bool { return s.profiles[name] != nil }

// mine says whether this scheduler is to find a node for a pod.
func (s *Scheduler) mine(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && s.Serves(pod.Spec.SchedulerName) && !cluster.Ended(pod)
}
