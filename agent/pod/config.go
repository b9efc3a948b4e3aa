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
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pulled"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/agent/volume"
	volumekind "github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/probes"
)

// Cgroups are the groups of the pods. All methods are idempotent.
type Cgroups interface {
	// PodPath is where the pod's group is or will be, the cgroup parent of the pod's sandbox.
	PodPath(*corev1.Pod) string
	// EnsurePod makes the pod's group with its limits and returns its path. The group may be there, with groups in it.
	EnsurePod(*corev1.Pod) (string, error)
	// ResizePod changes the limits of a pod that runs. In between it calls write for each of the containers whose IDs
	// are given, by name.
	ResizePod(pod *corev1.Pod, ids map[string]string, write func(container string) error) error
	// RemovePod kills what is left in the pod's group and removes it. path may be "" when it is not known.
	RemovePod(ctx context.Context, uid types.UID, path string) error
	// Pods lists the pods that have a group.
	Pods() ([]types.UID, error)
}

// Volumes are the volumes of the pods. All methods are idempotent.
type Volumes interface {
	// Setup makes every volume of the pod and returns the host path of each by its name. Volumes that are there already
	// are brought up to date with their content.
	Setup(ctx context.Context, pod *corev1.Pod, content volume.Content) (map[string]string, error)
	// Secrets names the Secrets that a volume needs, whose claim, if it has one, is bound to the PersistentVolume.
	Secrets(v *corev1.Volume, bound *corev1.PersistentVolume) []volumekind.SecretRef
	// SubPath pins a path inside a volume, for the mount with that index of the container, and returns what is to be
	// mounted.
	SubPath(ctx context.Context, pod *corev1.Pod, container string, idx int, volPath, subPath string) (string, error)
	// Bind returns the PersistentVolume of a pod's ephemeral volume; one that has none yet gets what choose returns,
	// which is told what all pods have.
	Bind(uid types.UID, volume string, choose func(volume.Taken) (string, error)) (string, error)
	// Teardown takes away everything Setup and SubPath made, with the pod's directory.
	Teardown(ctx context.Context, uid types.UID) error
	// Release is Teardown without the files in the pod's directory: the records of it and of its containers' last words.
	Release(ctx context.Context, uid types.UID) error
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
	Objects *object.Store // filled by the Manager with what updates tell; nil: one of its own

	Node     NodeConfig
	Given    Given
	Images   ImageConfig
	Security SecurityConfig
	DNS      DNSConfig

	RootDir string // pods' files are under pods/<uid>
	LogDir  string // logs are under <namespace>_<name>_<uid>/<container>

	// DiskUse counts the bytes that the files below a directory take; false when it cannot. nil: what pods
	// have on the disk is not limited.
	DiskUse func(ctx context.Context, dir string) (bytes int64, ok bool)

	// Containers that exit are restarted after Backoff.Initial, which doubles up to Max and begins anew for a container
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
	Name        string
	Labels      map[string]string
	IPs         func() []string     // the node's addresses, the main one first
	Memory      int64               // bytes, for oom_score_adj
	Allocatable corev1.ResourceList // what pods may request, and what resourceFieldRef says without a limit; nil: cpus and memory of the node
	Groups      kube.Options        // the node's choices for the groups of containers
	GroupFirst  bool                // a pod's group has to be there before its sandbox: systemd would make one without limits
}

// Given is what pods are given of the node for themselves.
type Given struct {
	// Resources are what a pod is admitted to, and what is got ready for it, in this order; containers are made with
	// them, and they are taken back, in the other.
	Resources []NodeResource
	Extended  func() corev1.ResourceList // what pods may request beside Allocatable at the moment; nil: nothing
	Pins      *pinning.Manager           // hears which containers run, and which resizes are to be; nil: nothing is pinned
}

// ImageConfig is how images are had.
type ImageConfig struct {
	Credentials Credentials     // nil: registries are shown none
	Pulled      *pulled.Records // who may use which image that is there; nil: everybody all of them
}

// SecurityConfig is what containers may do.
type SecurityConfig struct {
	SeccompDir     string   // profiles of type Localhost; "" = <RootDir>/seccomp
	SeccompDefault bool     // containers that name no profile have the runtime's, instead of none
	Sysctls        []string // sysctls allowed beyond the safe ones, "net.core.*" too
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
	if c.Node.IPs == nil {
		c.Node.IPs = func() []string { return nil }
	}
	if c.Node.Allocatable == nil {
		c.Node.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(c.Node.Memory, resource.BinarySI),
		}
	}
	if c.Given.Extended == nil {
		c.Given.Extended = func() corev1.ResourceList { return nil }
	}
	if c.Objects == nil {
		c.Objects = new(object.Store)
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

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
