// Package volume makes the volumes of a pod on this node and takes them away again.
//
// A pod's files are under <root>/pods/<uid>, in the layout other node tools know:
// volumes/kubernetes.io~empty-dir/<name>, volume-subpaths/<volume>/<container>/<index>, containers/, etc-hosts. Of what
// is in there nothing is recorded: the tree and the kernel's list of mounts are the truth, so every step can be
// repeated, after a crash too. Kinds of volumes that do more on the node record that first.
//
// Nothing of the user's is ever deleted. Taking a pod away first unmounts everything under its directory, refuses to go
// on while a mount is left, and then removes only what this package made or the pod wrote into it, without crossing
// from one mount into another and without following a link.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"go.opentelemetry.io/otel/trace"

	"github.com/berth-node/berth/agent/volume/csi"
	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/patience"
)

const (
	podsDir     = "pods" // in the root directory
	subPathsDir = "volume-subpaths"

	// containersDir holds what there is of each container, such as its termination message.
	containersDir = "containers"
	// stagingPrefix begins the name of what is being made; names of volumes are DNS labels, so none begins so.
	stagingPrefix = ".new-"
)

// Config says where the pods' directories are.
type Config struct {
	Root string   // the agent's root directory; must exist when the first pod comes
	Own  []string // further directories of the agent, which no pod may have as a hostPath
	Open []string // directories in those, which they may have: plugins in pods have their sockets there
	Log  *slog.Logger

	CSI csi.Config // volumes of drivers

	Quotas bool // the file system is to hold emptyDirs to their limits, where it can
}

// Content is what volumes get that is in neither the pod nor on the node.
type Content struct {
	Files      map[string][]kind.File              // by volume: of those that are made of objects
	Persistent map[string]*corev1.PersistentVolume // by volume: what its claim is bound to
	Secrets    map[string]kind.Secrets             // by volume: of those that [Manager.Secrets] names
}

// Manager makes and removes volumes. It is safe for concurrent use for different pods. What it does for each kind of
// volume is in the table of kinds; it knows none of them.
type Manager struct {
	root  kind.Root
	kinds []Kind
	log   *slog.Logger
	calls patience.Calls // of what is mounted, which may not answer

	claims sync.Mutex // held while a claim is bound: no two pods get one volume
}

// New returns a Manager.
func New(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if abs, err := filepath.Abs(cfg.Root); err == nil {
		cfg.Root = abs
	}
	m := &Manager{root: kind.Root(cfg.Root), log: cfg.Log}
	m.kinds = kinds(cfg, &m.calls)
	return m
}

// Pods returns the pods that have a directory.
func (m *Manager) Pods() ([]types.UID, error) { return m.root.Pods() }

// of is the kind of a volume; nil when there is none.
func (m *Manager) of(s kind.Source) Kind {
	if i := slices.IndexFunc(m.kinds, func(k Kind) bool { return k.Makes(s) }); i >= 0 {
		return m.kinds[i]
	}
	return nil
}

// Secrets names the Secrets that a volume of a pod needs, whose claim, if it has one, is bound to the PersistentVolume.
func (m *Manager) Secrets(v *corev1.Volume, bound *corev1.PersistentVolume) []kind.SecretRef {
	source := kind.Source{Pod: &v.VolumeSource, Bound: bound}
	if k, ok := m.of(source).(needsSecrets); ok {
		return k.Secrets(source)
	}
	return nil
}

// ReadOnly says whether no container may write to a volume of a pod, whatever its mount says: by its kind, its claim,
// or the PersistentVolume that the claim is bound to.
func (m *Manager) ReadOnly(v *corev1.Volume, bound *corev1.PersistentVolume) bool {
	if c := v.PersistentVolumeClaim; c != nil && c.ReadOnly {
		return true
	}
	source := kind.Source{Pod: &v.VolumeSource, Bound: bound}
	k, ok := m.of(source).(onlyRead)
	return ok && k.ReadOnly(source)
}

// Elsewhere says whether volumes of a pod are not this machine's work alone, or may be not: a claim is bound to any
// kind.
func (m *Manager) Elsewhere(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		k := m.of(kind.Source{Pod: &v.VolumeSource})
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || k != nil && k.Traits().Elsewhere
	})
}

// Setup makes every volume of the pod that is not there yet and returns the host path of each by name. What is there
// already stays, since containers may be using it; volumes that are made of objects get the content that these have
// now, in one step each. An image volume has no path: the runtime mounts it.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod, content Content) (map[string]string, error) {
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/volume").Start(ctx, "volumes")
	defer span.End()
	dir, err := m.root.Dir(pod.UID)
	if err != nil {
		return nil, fmt.Errorf("set up volumes: %w", err)
	}
	// Other users of the machine have no business in here, whatever the modes further down.
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("set up volumes: %w", err)
	}
	paths := make(map[string]string, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("set up volume %s: %w", v.Name, err)
		}
		path, err := m.setupWithin(ctx, &kind.Volume{
			Source: kind.Source{Pod: &v.VolumeSource, Bound: content.Persistent[v.Name]}, Pod: pod, Dir: dir, Name: v.Name,
			Files: content.Files[v.Name], Secrets: content.Secrets[v.Name],
		})
		if err != nil {
			return nil, fmt.Errorf("set up volume %s: %w", v.Name, err)
		}
		paths[v.Name] = path
		m.log.Debug("volume is there", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "volume", v.Name)
	}
	return paths, nil
}

// setupGrace is how long the making of a volume may take to come to its end when nobody wants it any more.
const setupGrace = 20 * time.Second

// setupWithin returns when the context has ended, whatever the file system of the volume does. What is under way then
// goes on, and nothing else is done with the volume until it has come to its end.
func (m *Manager) setupWithin(ctx context.Context, v *kind.Volume) (string, error) {
	what := "what volume " + v.Name + " of pod " + string(v.Pod.UID) + " is on"
	return patience.Ask(ctx, &m.calls, what, setupGrace, func() (string, error) { return m.setup(ctx, v) })
}

func (m *Manager) setup(ctx context.Context, v *kind.Volume) (string, error) {
	if !kind.IsName(v.Name) {
		return "", fmt.Errorf("%q is no name of a volume", v.Name)
	}
	path, err := m.make(ctx, v)
	if err != nil && v.Bound != nil {
		err = fmt.Errorf("persistentvolume %q: %w", v.Bound.Name, err)
	}
	return path, err
}

func (m *Manager) make(ctx context.Context, v *kind.Volume) (string, error) {
	k := m.of(v.Source)
	if k == nil {
		return "", errors.New(noKind(v.Bound))
	}
	if v.Bound != nil {
		if err := usedAs(v.Pod, v.Name, v.Block()); err != nil {
			return "", err
		}
	}
	if v.Block() && !k.Traits().Block {
		return "", errors.New("this kind of volume cannot have the volumeMode Block")
	}
	made, err := k.Setup(ctx, v)
	if err == nil && made.Group {
		err = takeGroup(ctx, &m.calls, v.Pod, made.Path)
	}
	return made.Path, err
}

// usedAs says where a container uses a volume in the other mode than it has.
func usedAs(pod *corev1.Pod, volume string, block bool) error {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			mount := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
			device := slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
			if block && mount {
				return fmt.Errorf("volume has volumeMode Block, but is in volumeMounts of container %s: it must be in volumeDevices", c.Name)
			}
			if !block && device {
				return fmt.Errorf("volume has volumeMode Filesystem, but is in volumeDevices of container %s: it must be in volumeMounts", c.Name)
			}
		}
	}
	return nil
}
