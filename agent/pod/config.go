package pod

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pulled"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/eviction/collect"
	"github.com/berth-node/berth/probes"
)

// Cgroups are the groups of the pods. All methods are idempotent.
type Cgroups interface {
	environment.Cgroups
	// ResizePod changes the limits of a pod that runs. In between it calls write for each of the containers whose IDs
	// are given, by name.
	ResizePod(pod *corev1.Pod, ids map[string]string, write func(container string) error) error
}

// Volumes are the volumes of the pods. All methods are idempotent.
type Volumes interface {
	environment.Volumes
	// SubPath pins a path inside a volume, for the mount with that index of the container, and returns what is to be
	// mounted. It goes with the pod's volumes.
	SubPath(ctx context.Context, pod *corev1.Pod, container string, idx int, volPath, subPath string) (string, error)
	// Elsewhere says whether volumes of the pod may not be this machine's work alone.
	Elsewhere(pod *corev1.Pod) bool
	// Pods lists the pods that have anything.
	Pods() ([]types.UID, error)
}

// Credentials are what registries are shown.
type Credentials interface {
	// For returns what may be shown for an image, in the order in which it is to be tried.
	For(ctx context.Context, image string) ([]*runtimeapi.AuthConfig, error)
}

// ProbeObserver hears of every answer of a probe.
type ProbeObserver interface {
	Probed(pod *corev1.Pod, container string, kind probes.Kind, outcome probes.Outcome, took time.Duration)
	// ProbesEnded tells of a container that is not asked any more.
	ProbesEnded(pod *corev1.Pod, container string)
}

// Observer hears of the work on pods. Its methods return at once.
type Observer interface {
	// Started tells that every container of a pod runs or has run for the first time, and how long that took since it
	// was seen.
	Started(took time.Duration)
	// Stepped tells of a step that has ended, and whether it was one of a pod's start.
	Stepped(starting bool, took time.Duration)
}

// Events hears what happens to pods and their containers. Its methods return at once.
type Events interface {
	Event(pod *corev1.Pod, typ, reason, format string, args ...any)
	// Annotated is Event with annotations of the event itself.
	Annotated(pod *corev1.Pod, annotations map[string]string, typ, reason, format string, args ...any)
	Container(pod *corev1.Pod, name, typ, reason, format string, args ...any)
}

// Statuses is where the pods are written with their status, and where everybody reads them. What is in there is shared
// and must not be changed.
type Statuses interface {
	// Put publishes the pod with its status.
	Put(pod *corev1.Pod)
	// Delete forgets the pod, if it is the one known by its name.
	Delete(pod *corev1.Pod)
	Get(key types.NamespacedName) (*corev1.Pod, bool)
	List() []*corev1.Pod // in the order of their names
	// Subscribe begins at this moment what the function that it returns goes on with: to tell of each pod there is and
	// then of every change, until the context ends or the function that hears of it fails.
	Subscribe() func(context.Context, func(watch.EventType, *corev1.Pod) error) error
}

// Config is what a [Manager] works with. Runtime, Cgroups, Volumes, the node's name, RootDir and LogDir are required.
type Config struct {
	Runtime Runtime
	Cgroups Cgroups
	Volumes Volumes
	Objects *object.Stores // filled by the Manager with what updates tell; nil: one of its own

	Node     NodeConfig
	Given    Given
	Issued   Issued
	Images   ImageConfig
	Security SecurityConfig
	DNS      DNSConfig

	RootDir string // pods' files are under pods/<uid>
	LogDir  string // logs are under <namespace>_<name>_<uid>/<container>

	// Containers that exit are restarted after Backoff.Initial, which doubles up to Max and starts over for a container
	// that ran for Reset. The first restart is at once. All zero: 10 s, 5 min, 10 min. With Initial alone zero there is
	// no delay.
	Backoff plan.Delays

	// MaxParallelStarts is how many pods are started, and how many are taken down, at the same time; 0: twice the
	// number of CPUs. Pulls, hooks and waiting for containers to end do not count.
	MaxParallelStarts int
	Resync            time.Duration // how often it is checked that events told the truth; 0: 5 min

	Observers      Observers
	Events         Events                   // nil: nobody hears
	Statuses       Statuses                 // nil: a [status.Writer] of its own
	TracerProvider *sdktrace.TracerProvider // nil: one of its own
	Log            *slog.Logger
}

// NodeConfig is what pods are told of the node, and what they may have of it.
type NodeConfig struct {
	Name string
	// Labels are what pods choose the node by; nil: none.
	Labels      func() map[string]string
	Taints      func() []corev1.Taint // that pods have to tolerate; nil: none
	IPs         func() []string       // the node's addresses, the main one first
	Memory      int64                 // bytes, for oom_score_adj
	Allocatable corev1.ResourceList   // what pods may request, or resourceFieldRef says without one; nil: all
	Groups      kube.Options          // the node's choices for the groups of containers
	Dead        *collect.Policy       // which dead containers are kept for their logs; nil: as kubelet does by default
	GroupFirst  bool                  // a pod's group comes before its sandbox: systemd would make one without limits
	Short       Short
}

// Given is what pods are given of the node for themselves.
type Given struct {
	// Resources are what a pod is admitted to, and what is got ready for it, in this order; containers are made with
	// them, and they are taken back, in the other.
	Resources []NodeResource
	// Extended is what pods may request beside Allocatable at the moment, and 0 of what they could before; nil:
	// nothing.
	Extended func() corev1.ResourceList
	Pins     Pins // nil: nothing is pinned
}

// Issued is what an API server makes for pods of its own.
type Issued struct {
	Tokens       environment.Tokens       // nil: there is no API server
	Certificates environment.Certificates // nil, too
}

// Pins hears which containers run with which CPUs, and which resizes are to be.
type Pins interface {
	// Run has containers be where they should, and looks whether they are, until ctx ends.
	Run(ctx context.Context, resync time.Duration)
	// Started tells that a container runs, and what it was made with, if that is known.
	Started(id string, uid types.UID, container string, pin *kube.Pin)
	// Pin is where a container is to run.
	Pin(uid types.UID, container string) kube.Pin
	// Keeps says whether a pod would have, with this specification, exactly what it has.
	Keeps(pod *corev1.Pod) bool
}

// unpinned is a node that pins nothing.
type unpinned struct{}

// Run implements [Pins].
func (unpinned) Run(context.Context, time.Duration) {}

// Started implements [Pins].
func (unpinned) Started(string, types.UID, string, *kube.Pin) {}

// Pin implements [Pins].
func (unpinned) Pin(types.UID, string) kube.Pin { return kube.Pin{} }

// Keeps implements [Pins].
func (unpinned) Keeps(*corev1.Pod) bool { return true }

// ImageConfig is how images are had.
type ImageConfig struct {
	Credentials Credentials     // nil: registries are shown none
	Pulled      *pulled.Records // who may use which image that is there; nil: everybody all of them
	// Room removes images where there is no room for something else of a pod. It says whether there may be more now
	// than at a moment. nil: no room is made.
	Room func(ctx context.Context, since time.Time) (bool, error)
}

// SecurityConfig is what containers may do.
type SecurityConfig struct {
	SeccompDir     string   // profiles of type Localhost; "" = <RootDir>/seccomp
	SeccompDefault bool     // containers that name no profile have the runtime's, instead of none
	Sysctls        []string // sysctls allowed beyond the safe ones, "net.core.*" too
}

// Short is what the node is short of.
type Short struct {
	Holding func() []corev1.NodeConditionType // the conditions that hold; nil: never any
	Cluster bool                              // the node has an API server
}

// DNSConfig is how pods resolve names.
type DNSConfig struct {
	ResolvConf string   // the node's resolver configuration; "" = /etc/resolv.conf
	Servers    []string // name servers of the cluster; none: pods have the node's
	Domain     string   // of the cluster; "" = cluster.local
}

// Observers hear what goes on, to count it.
type Observers struct {
	Probes ProbeObserver // nil: nobody counts
	Work   Observer      // nil: nobody counts
}

func (c *Config) complete() error {
	for _, missing := range []struct {
		is   bool
		what string
	}{
		{c.Runtime == nil, "runtime"},
		{c.Cgroups == nil, "cgroups"},
		{c.Volumes == nil, "volumes"},
		{c.Node.Name == "", "node name"},
		{c.RootDir == "", "root directory"},
		{c.LogDir == "", "log directory"},
	} {
		if missing.is {
			return errors.New("configure pods: no " + missing.what + " given")
		}
	}
	c.Node.complete()
	if c.Given.Extended == nil {
		c.Given.Extended = func() corev1.ResourceList { return nil }
	}
	if c.Given.Pins == nil {
		c.Given.Pins = unpinned{}
	}
	if c.Objects == nil {
		c.Objects = new(object.Stores)
	}
	setDefault(&c.DNS.ResolvConf, "/etc/resolv.conf")
	setDefault(&c.DNS.Domain, "cluster.local")
	setDefault(&c.Security.SeccompDir, c.RootDir+"/seccomp")
	if c.Backoff.Initial == 0 && c.Backoff.Max == 0 && c.Backoff.Reset == 0 {
		c.Backoff.Initial = 10 * time.Second
	}
	setDefault(&c.Backoff.Max, 5*time.Minute)
	setDefault(&c.Backoff.Reset, 10*time.Minute)
	setDefault(&c.MaxParallelStarts, 2*runtime.NumCPU())
	setDefault(&c.Resync, 5*time.Minute)
	if c.Events == nil {
		c.Events = event.NewRecorder(c.Node.Name)
	}
	if c.Statuses == nil {
		c.Statuses = status.NewWriter()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = sdktrace.NewTracerProvider()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// complete fills in what of the node is not given.
func (c *NodeConfig) complete() {
	if c.Labels == nil {
		c.Labels = func() map[string]string { return nil }
	}
	if c.Taints == nil {
		c.Taints = func() []corev1.Taint { return nil }
	}
	if c.IPs == nil {
		c.IPs = func() []string { return nil }
	}
	if c.Allocatable == nil {
		c.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(c.Memory, resource.BinarySI),
		}
	}
	if c.Short.Holding == nil {
		c.Short.Holding = func() []corev1.NodeConditionType { return nil }
	}
	setDefault(&c.Dead, new(collect.Default()))
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
