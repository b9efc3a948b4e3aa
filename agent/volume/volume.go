// Package volume makes the volumes of a pod on this node and takes them away again.
//
// A pod's files are under <root>/pods/<uid>, in the layout other node tools know: volumes/kubernetes.io~empty-dir/<name>,
// volume-subpaths/<volume>/<container>/<index>, containers/, etc-hosts. There are no records: the tree and the kernel's
// list of mounts are the truth, so every step can be repeated, after a crash too.
//
// Nothing of the user's is ever deleted. Taking a pod away first unmounts everything under its directory, refuses to go on
// while a mount is left, and then removes only what this package made or the pod wrote into it, without
// crossing from one mount into another and without following a link.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"go.opentelemetry.io/otel/trace"
)

// The directories of the kinds of volumes, as other node tools know them.
const (
	emptyDirPlugin  = "kubernetes.io~empty-dir"
	configMapPlugin = "kubernetes.io~configmap"
	secretPlugin    = "kubernetes.io~secret"
	downwardPlugin  = "kubernetes.io~downward-api"
	projectedPlugin = "kubernetes.io~projected"
	nfsPlugin       = "kubernetes.io~nfs"

	volumesDir  = "volumes"
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

	Quotas bool // the file system is to hold emptyDirs to their limits, where it can
}

// Manager makes and removes volumes. It is safe for concurrent use for different pods.
type Manager struct {
	cfg Config
	log *slog.Logger

	claims sync.Mutex // held while a claim is bound: no two pods get one volume
	format sync.Mutex // held while a device gets a file system: no two pods make one on it
	quotas sync.Mutex // held while a directory gets a project: no two get the same

	targets  locks      // of iSCSI, by name: held while a session is made or ended
	ifaces   sync.Mutex // held while an interface of iSCSI is made or removed
	sys, dev string     // where the kernel shows its devices
}

// New returns a Manager.
func New(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if abs, err := filepath.Abs(cfg.Root); err == nil {
		cfg.Root = abs
	}
	return &Manager{cfg: cfg, log: cfg.Log, sys: "/sys", dev: "/dev"}
}

// errUID says that a UID would lead elsewhere when it became part of a path.
var errUID = errors.New("pod UID is no name of a directory")

// podDir is where everything of a pod is.
func (m *Manager) podDir(uid types.UID) (string, error) {
	name := string(uid)
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return "", fmt.Errorf("%w: %q", errUID, name)
	}
	// The kernel's list of mounts has no links in its paths, so ours have none either.
	root, err := filepath.EvalSymlinks(m.cfg.Root)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "pods", name), nil
}

// Pods returns the pods that have a directory.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pods' directories: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, nil
}

// Setup makes every volume of the pod that is not there yet and returns the host path of each by name. What is there already
// stays, since containers may be using it; volumes that are made of objects get the content that these have now, in one step each. An
// image volume has no path: the runtime mounts it.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod, content Content) (map[string]string, error) {
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/volume").Start(ctx, "volumes")
	defer span.End()
	dir, err := m.podDir(pod.UID)
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
		path, err := m.setup(ctx, dir, pod, v, content)
		if err != nil {
			return nil, fmt.Errorf("set up volume %s: %w", v.Name, err)
		}
		paths[v.Name] = path
	}
	return paths, nil
}

func (m *Manager) setup(ctx context.Context, dir string, pod *corev1.Pod, v *corev1.Volume, content Content) (string, error) {
	if v.Name == "" || strings.HasPrefix(v.Name, ".") || strings.Contains(v.Name, "/") {
		return "", fmt.Errorf("%q is no name of a volume", v.Name)
	}
	switch {
	case v.EmptyDir != nil:
		parent := filepath.Join(dir, volumesDir, emptyDirPlugin)
		if err := os.MkdirAll(parent, 0o750); err != nil {
			return "", err
		}
		return filepath.Join(parent, v.Name), m.setupEmptyDir(parent, pod, v)
	case v.HostPath != nil:
		return v.HostPath.Path, m.setupHostPath(v.HostPath)
	case v.ConfigMap != nil:
		return m.setupFiles(dir, configMapPlugin, pod, v, content.Files[v.Name], false)
	case v.Secret != nil:
		return m.setupFiles(dir, secretPlugin, pod, v, content.Files[v.Name], true)
	case v.DownwardAPI != nil:
		return m.setupFiles(dir, downwardPlugin, pod, v, content.Files[v.Name], true)
	case v.Projected != nil:
		return m.setupFiles(dir, projectedPlugin, pod, v, content.Files[v.Name], true)
	case v.NFS != nil:
		return m.setupNFS(ctx, dir, v.Name, v.NFS, nil)
	case v.ISCSI != nil:
		return m.setupISCSI(ctx, dir, pod, v, inlineISCSI(v.ISCSI), nil, false, content.CHAP[v.Name])
	case v.Image != nil:
		return "", nil
	case content.Persistent[v.Name] != nil:
		return m.setupPersistent(ctx, dir, pod, v, content.Persistent[v.Name], content.CHAP[v.Name])
	}
	return "", errors.New("this kind of volume is not there yet")
}
