// Package environment makes, keeps and removes what a pod has on the node beside its containers: a directory, what is
// its own of the node's resources, a cgroup, volumes, files and a sandbox. Each is a hook with an undo, and nothing is
// remembered that the pod's directory, the runtime or the kernel does not tell.
package environment

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/token"
	"github.com/berth-node/berth/agent/volume"
	volumekind "github.com/berth-node/berth/agent/volume/kind"
)

// Node is the node as its pods' environments need to know it.
type Node interface {
	// Spec is what pods are told of the node, and SandboxSpec the same with its resolvers.
	Spec() *spec.Node
	SandboxSpec() *spec.Node
	// Handler is the runtime handler of a pod, and what it can do; nil where the runtime does not say.
	Handler(pod *corev1.Pod) (string, *runtimeapi.RuntimeHandlerFeatures)
	// Begin tells that a part of a pod is being made or removed. What it returns is told what that came to.
	Begin(ctx context.Context, pod *corev1.Pod, part string) (context.Context, func(error))
	// Event tells what has happened to a pod.
	Event(pod *corev1.Pod, typ, reason, format string, args ...any)
}

// Runtime is where the sandboxes are.
type Runtime interface {
	Removals
	RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error)
	PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error)
	ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error)
}

// Cgroups are the groups of the pods. All methods are idempotent.
type Cgroups interface {
	Killer
	// PodPath is where the pod's group is or will be, the cgroup parent of the pod's sandbox.
	PodPath(*corev1.Pod) string
	// EnsurePod makes the pod's group with its limits and returns its path. The group may be there, with groups in it.
	EnsurePod(*corev1.Pod) (string, error)
	// RemovePod kills what is left in the pod's group and removes it. path may be "" when it is not known.
	RemovePod(ctx context.Context, uid types.UID, path string) error
}

// Volumes are the volumes of the pods. All methods are idempotent.
type Volumes interface {
	// Setup makes every volume of the pod and returns the host path of each by its name. Volumes that are there already
	// are brought up to date with their content.
	Setup(ctx context.Context, pod *corev1.Pod, content volume.Content) (map[string]string, error)
	// Secrets names the Secrets that a volume needs, whose claim, if it has one, is bound to the PersistentVolume.
	Secrets(v *corev1.Volume, bound *corev1.PersistentVolume) []volumekind.SecretRef
	// ReadOnly says of such a volume whether no container may write to it, whatever its mount says.
	ReadOnly(v *corev1.Volume, bound *corev1.PersistentVolume) bool
	// Bind returns the PersistentVolume of a pod's ephemeral volume; one that has none yet gets what choose returns,
	// which is told what all pods have.
	Bind(uid types.UID, volume string, choose func(volume.Taken) (string, error)) (string, error)
	// Teardown takes away everything of the pod's volumes, with the pod's directory.
	Teardown(ctx context.Context, uid types.UID) error
	// Release is Teardown without the files in the pod's directory: the records of it and of its containers' last
	// words.
	Release(ctx context.Context, uid types.UID) error
}

// Resource is something of the node that pods are given for themselves. All methods can be repeated.
type Resource interface {
	Name() string
	// Prepare gets ready what the pod was given, before its sandbox is made.
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// Release takes back what the pod has, when nothing of it runs any more.
	Release(ctx context.Context, pod *corev1.Pod) error
}

// Tokens are those of the service accounts of pods.
type Tokens interface {
	// Token is one for the pod, and the same one until another takes its place.
	Token(ctx context.Context, pod *corev1.Pod, want token.Want) (token.Token, error)
	// Adopt takes one that the pod was given before, until there is another; false: it is not good.
	Adopt(pod *corev1.Pod, want token.Want, text string) (token.Token, bool)
	// Forget drops those of a pod that needs none any more.
	Forget(uid types.UID)
}

// Certificates are those that signers make for pods.
type Certificates interface {
	// Credential is what a source of a volume of the pod is to have. It does not wait for the signer.
	Credential(pod *corev1.Pod, volume string, index int, want *corev1.PodCertificateProjection) (podcert.Credential, error)
	// Forget drops those of a pod that needs none any more.
	Forget(uid types.UID)
}

// Config is what environments are made of. All of it but Tokens, Certificates and Labels is required.
type Config struct {
	Node      Node
	Runtime   Runtime
	Cgroups   Cgroups
	Volumes   Volumes
	Resources []Resource // got ready in this order, and taken back in the other
	Objects   *object.Stores
	Tokens    Tokens // nil: there are none to be had
	// Certificates are nil where nobody signs any.
	Certificates Certificates

	RootDir string // pods' files are under pods/<uid>
	LogDir  string
	Domain  string // of the cluster

	Labels map[string]string // of the node
	// A pod's group has to be there before its sandbox: systemd would make one without limits.
	GroupFirst bool
}

// Maker makes the environments of a node's pods.
type Maker struct {
	cfg  Config
	pool *idPool
}

// New returns a Maker.
func New(c Config) *Maker { return &Maker{cfg: c, pool: &idPool{rootDir: c.RootDir, etc: "/etc"}} }

// Of is the environment of a pod, as far as it is known: it may have those sandboxes, and any part of the rest.
func (m *Maker) Of(pod *corev1.Pod, sandboxes []string) *Environment {
	return &Environment{
		cfg: &m.cfg, pod: pod, files: files{cfg: &m.cfg, pod: pod, pool: m.pool},
		sandbox: sandbox{cfg: &m.cfg, pod: pod, known: sandboxes}, volumes: volumes{cfg: &m.cfg, pod: pod},
	}
}

// Environment is what one pod has on the node beside its containers. Its verbs are called one at a time; once it is
// made it can be read by many.
type Environment struct {
	cfg     *Config
	pod     *corev1.Pod
	files   files
	sandbox sandbox
	volumes volumes
}

// Wanted is the sandbox that an environment is to have.
type Wanted struct {
	ID      string // the one that is there; "": it is to be made
	Attempt uint32
	Before  string // the one before it, to be ended first
}

// Sandbox is the ID of the pod's sandbox, "" when none is known.
func (e *Environment) Sandbox() string { return e.sandbox.id }

// SandboxConfig is what the sandbox was made with.
func (e *Environment) SandboxConfig() *runtimeapi.PodSandboxConfig { return e.sandbox.config }

// Volume is the host path of a volume of the pod; false when it has none of that name.
func (e *Environment) Volume(name string) (string, bool) {
	path, ok := e.volumes.paths[name]
	return path, ok
}

// ReadOnly are the volumes of the pod, by name, that no container may write to, whatever its mount says.
func (e *Environment) ReadOnly() map[string]bool { return e.volumes.readOnly }

// IDs are the pod's own ids of users and groups; nil: it has the node's.
func (e *Environment) IDs() *spec.IDs { return e.files.ids }

// HostsFile is the pod's /etc/hosts.
func (e *Environment) HostsFile() string { return e.files.hosts() }

// MakeMessage makes the file for a container's termination message, empty, and returns its path.
func (e *Environment) MakeMessage(container string, attempt uint32) (string, error) {
	return e.files.makeMessage(container, attempt)
}

// Features is what the pod's runtime handler can do; nil where the runtime does not say.
func (e *Environment) Features() *runtimeapi.RuntimeHandlerFeatures {
	_, features := e.cfg.Node.Handler(e.pod)
	return features
}
