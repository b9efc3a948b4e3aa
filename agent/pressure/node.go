// Package pressure is the node whose pods are evicted when it runs short: which pods have what, how one is ended at
// once, what the node says of itself meanwhile, and what is remembered of it. When and whom, package eviction
// decides.
package pressure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// Pods are those of the node.
type Pods interface {
	// Candidates are the pods that have something of the node.
	Candidates() []pod.Candidate
	// Evict records that a pod is to end, and tells those who end it in good order.
	Evict(uid types.UID, why pod.Eviction) error
	// Running are the IDs of the containers of a pod that run, by the runtime's word.
	Running(ctx context.Context, uid types.UID) ([]string, error)
	// Quiet waits until nothing runs of a pod that was told to end, and nothing will.
	Quiet(ctx context.Context, uid types.UID) error
	// Ended waits until a pod has given back what it had.
	Ended(ctx context.Context, uid types.UID) error
	// Taken is what pods have on the disks.
	Taken(ctx context.Context, pods []*corev1.Pod) (map[types.UID]pod.Taken, error)
}

// Groups are the control groups of the pods. Of a pod without one they say [fs.ErrNotExist].
type Groups interface {
	Memory(*corev1.Pod) (uint64, error)
	// MemoryOfContainers is by ID.
	MemoryOfContainers(*corev1.Pod) (map[string]uint64, error)
	Tasks(*corev1.Pod) (uint64, error)
	// KillContainers ends at once all that runs in containers, and waits for the deaths.
	KillContainers(ctx context.Context, of *corev1.Pod, ids []string) error
}

// Events is where it is told what happens to the node.
type Events interface {
	Node(typ, reason, format string, args ...any)
}

// Config is what a [Node] works with. All but Cluster and Shed is required.
type Config struct {
	Pods   Pods
	Groups Groups
	Dead   Dead
	Images Images
	// Shed removes the files of containers that have ended, but not the containers, until so much of their file system
	// is free as is needed, and says how much that was. nil: nobody can.
	Shed   func(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error)
	Events Events
	// Again has the pods asked for again that wait until a condition holds no more.
	Again func()
	// Cluster says that the node has an API server, whose copies of static pods are not evicted.
	Cluster bool
	// Transition is how long a condition outlasts what it tells of.
	Transition time.Duration
	RootDir    string // on the node's file system
	ImageDir   string // on that of images and of what containers write
	File       string // where decisions outlive a restart; "": nowhere
	// Held is where it is kept which conditions hold; "": nowhere.
	Held string
	Log  *slog.Logger
}

// Node implements [eviction.Node]. Its methods can be called at any time.
type Node struct {
	cfg     Config
	log     *slog.Logger
	history *history
	counted *counted

	mu         sync.Mutex
	conditions eviction.Conditions
	told       func() // of conditions that are others than before; nil: nobody
}

var _ eviction.Node = (*Node)(nil)

// New returns a node on which holds what did when an agent before this one looked last, if the transition period since
// is not over.
func New(c Config) *Node {
	return &Node{
		cfg: c, log: c.Log, history: openHistory(c.File, c.Log), counted: newCounted(), conditions: readHeld(&c),
	}
}

// Ranked implements [eviction.Node].
func (n *Node) Ranked(ctx context.Context, of signal.Signal) ([]rank.Pod, error) {
	switch of.Resource() {
	case corev1.ResourceMemory:
		return n.byGroup(n.memory), nil
	case signal.ResourcePIDs:
		return n.byGroup(n.tasks), nil
	}
	return n.disk(ctx, of)
}

// askers is how many ask the kernel at once: on a node whose processors are all busy two of them get twice the time.
const askers = 4

// byGroup are the pods with what their groups say.
func (n *Node) byGroup(measure func(p *corev1.Pod, into *rank.Pod) error) []rank.Pod {
	all := n.cfg.Pods.Candidates()
	asked := make([]rank.Pod, len(all))
	there := make([]bool, len(all))
	var group sync.WaitGroup
	step := min(askers, runtime.GOMAXPROCS(0))
	for first := range step {
		group.Go(func() {
			for i := first; i < len(all); i += step {
				asked[i], there[i] = n.ask(&all[i], measure)
			}
		})
	}
	group.Wait()
	out := asked[:0]
	for i := range asked {
		if there[i] {
			out = append(out, asked[i])
		}
	}
	return out
}

// ask is a pod with what its group says; false of one of which nothing runs, yet or any more.
func (n *Node) ask(c *pod.Candidate, measure func(p *corev1.Pod, into *rank.Pod) error) (rank.Pod, bool) {
	out := describe(c, n.cfg.Cluster)
	switch err := measure(c.Pod, &out); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
		return out, false // ENODEV: its group was removed while it was read
	case err != nil:
		n.log.Warn("what a pod uses is not known", "pod", c.Pod.Namespace+"/"+c.Pod.Name, "uid", string(c.Pod.UID), "error", err)
	default:
		out.Known = true
	}
	return out, true
}

// describe is a pod without what it uses.
func describe(c *pod.Candidate, cluster bool) rank.Pod {
	p := c.Pod
	out := rank.Pod{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, QOS: kube.QoS(p), Priority: admission.Priority(p),
		Protected: admission.Spared(p, cluster), Ending: c.Evicted != nil,
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		out.Grace = *g
	}
	return out
}

func (n *Node) memory(p *corev1.Pod, into *rank.Pod) error {
	used, err := n.cfg.Groups.Memory(p)
	if err != nil {
		return err
	}
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	into.Usage, into.Request = int64(used), requests.Memory().Value()
	into.PodLevel = p.Spec.Resources != nil
	var each map[string]uint64
	if len(p.Spec.Containers) > 1 {
		each, _ = n.cfg.Groups.MemoryOfContainers(p) // for the message only
	}
	ids := containerIDs(p)
	into.Containers = containersOf(p, corev1.ResourceMemory, func(name string) int64 {
		if len(p.Spec.Containers) == 1 {
			return into.Usage
		}
		return int64(each[ids[name]])
	})
	return nil
}

func (n *Node) tasks(p *corev1.Pod, into *rank.Pod) error {
	used, err := n.cfg.Groups.Tasks(p)
	into.Usage = int64(used)
	return err
}

// containersOf are a pod's containers with what they have.
func containersOf(p *corev1.Pod, resource corev1.ResourceName, used func(name string) int64) []rank.Container {
	var out []rank.Container
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		request := c.Resources.Requests[resource]
		out = append(out, rank.Container{Name: c.Name, Usage: used(c.Name), Request: request.Value()})
	}
	return out
}

// Evict implements [eviction.Node].
func (n *Node) Evict(ctx context.Context, uid types.UID, o eviction.Order) error {
	all := n.cfg.Pods.Candidates()
	at := slices.IndexFunc(all, func(c pod.Candidate) bool { return c.Pod.UID == uid })
	if at < 0 {
		return nil // it has come to its end by itself
	}
	p := all[at].Pod
	why := pod.NewEviction(o.Message, time.Duration(o.GraceSeconds)*time.Second)
	why.Condition, why.Annotations = o.Signal.Condition(), o.Annotations
	if err := n.cfg.Pods.Evict(uid, why); err != nil {
		return err
	}
	if err := n.gone(ctx, p, o); err != nil {
		return fmt.Errorf("%w: %w", eviction.ErrNotGone, err)
	}
	return nil
}

// gone kills a pod that was told to end and has no time to do so, and waits until it has nothing more of the resource.
func (n *Node) gone(ctx context.Context, p *corev1.Pod, o eviction.Order) error {
	killed := o.GraceSeconds <= 0 && n.kill(ctx, p)
	if givesBackLater(p, o.Signal) {
		return n.cfg.Pods.Ended(ctx, p.UID)
	}
	if !killed {
		if err := n.cfg.Pods.Quiet(ctx, p.UID); err != nil {
			return err
		}
	}
	if o.Signal.Resource() == corev1.ResourceMemory && n.keepsMemory(p) {
		return n.cfg.Pods.Ended(ctx, p.UID)
	}
	return nil
}

// keptMemory is less than what a pod without processes has, beside the one that watches them.
const keptMemory = 16 << 20

// keepsMemory says whether a pod has memory though nothing of it runs: files in /dev/shm or in a tmpfs that it has
// mounted itself are charged to who has written them, and go with what they are in.
func (n *Node) keepsMemory(p *corev1.Pod) bool {
	used, err := n.cfg.Groups.Memory(p)
	return err == nil && used > keptMemory
}

// tellPatience is how long the runtime may take to say what runs.
const tellPatience = time.Second

// kill ends what runs of a pod, and says whether that is all. What it is not, the pod's worker ends, which was
// told: a container that is just being started is nowhere known yet.
func (n *Node) kill(ctx context.Context, p *corev1.Pod) bool {
	ids, all := running(p)
	if !all {
		// The status waits for the worker, which may be busy with the start of another one, and a bomb does not.
		asking, cancel := context.WithTimeout(ctx, tellPatience)
		told, err := n.cfg.Pods.Running(asking, p.UID)
		cancel()
		if err != nil {
			n.log.Info("what runs of a pod is not known beside its status", "pod", p.Namespace+"/"+p.Name, "uid", string(p.UID),
				"error", err)
		}
		ids = append(ids, told...)
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	if len(ids) == 0 {
		return false
	}
	if err := n.cfg.Groups.KillContainers(ctx, p, ids); err != nil {
		n.log.Info("pod is not killed beside its worker", "pod", p.Namespace+"/"+p.Name, "uid", string(p.UID), "error", err)
		return false
	}
	return all
}

// Decided keeps what was decided. It does not wait for the disk.
func (n *Node) Decided(d eviction.Decision) {
	if d.Pod.UID != "" && (d.Result.Error == "" || d.Result.Told) {
		n.counted.evicted(&d)
	}
	n.history.add(d)
}

// Wait waits until what was decided is kept.
func (n *Node) Wait() { n.history.wait.Wait() }

// reasonThresholdMet is kubelet's, of the event that the node runs short.
const reasonThresholdMet = "EvictionThresholdMet"

// Began tells that something is about to be done about a signal.
func (n *Node) Began(of signal.Signal) {
	n.cfg.Events.Node(corev1.EventTypeWarning, reasonThresholdMet, "Attempting to reclaim %s", of.Resource())
}

// givesBackLater says whether a pod has some of the resource still when all its processes are dead: files are its
// as long as its volumes are, also those in memory.
func givesBackLater(p *corev1.Pod, of signal.Signal) bool {
	switch of.Resource() {
	case corev1.ResourceMemory:
		return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault
		})
	case signal.ResourcePIDs:
		return false
	}
	return true
}

// statuses are those of all of a pod's containers.
func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
}

// containerIDs are the IDs of the containers that a pod was seen with, by name.
func containerIDs(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, s := range statuses(p) {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok {
			out[s.Name] = id
		}
	}
	return out
}

// running are the IDs of the containers that run, as far as is known, and whether it is known that no other one does.
func running(p *corev1.Pod) (ids []string, all bool) {
	all = true
	for _, s := range statuses(p) {
		_, id, ok := strings.Cut(s.ContainerID, "://")
		switch {
		case s.State.Running != nil && ok:
			ids = append(ids, id)
		case s.State.Terminated == nil:
			all = false
		}
	}
	return ids, all
}

// settlePatience is how long pods may take to end that an agent before this one had begun to evict, all together: as
// long as one that is killed. After that the node is watched again: those that end go before anybody else.
const settlePatience = 10 * time.Second

// Settle ends the pods that an agent before this one had begun to evict. Nobody else is looked for before that, for a
// while: what they have still is what is lacking. A pod that does not end keeps no other from being ended, nor the node
// from being watched: it may never end, as with a process or a mount that waits for a server that is gone.
func (n *Node) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	all := n.cfg.Pods.Candidates()
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, c := range all {
		if c.Evicted == nil || c.Evicted.Reason != pod.ReasonEvicted {
			continue
		}
		wait.Go(func() {
			if c.Evicted.GraceSeconds <= 0 {
				n.kill(ctx, c.Pod)
			}
			errs[i] = n.cfg.Pods.Ended(ctx, c.Pod.UID)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
