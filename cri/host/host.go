// Package host is what sandboxes and containers are made of: directories, cgroups, mounts, namespaces, keepers,
// runtimes. It knows neither.
package host

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/class"
	"github.com/berth-node/berth/cri/image"

	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/plugins"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/step"
)

// Host is what sandboxes and containers are made of.
type Host struct {
	Steps    step.Runner
	Paths    Layout
	Net      Network
	Cgroups  Groups
	Keepers  Keepers
	Snaps    snapshot.Snapshotter
	Images   Images
	Mounts   Mounts
	Host     oci.Host
	Armor    oci.AppArmor
	Runtimes Runtimes
	BootID   string
	CDI      *CDI
	Classes  *class.Classes
	Plugins  *plugins.Plugins
	Log      *slog.Logger

	UserNamespaces func() error // why pods cannot have ids of their own; nil where they can

	CgroupRoot  string // below which pods go that name no cgroup parent
	LogMaxSize  int64  // bytes at which a container's log is rotated; 0: never
	LogMaxFiles int    // that are kept of a log, the current one among them
}

// Network is the part of [cni.Network] that sandboxes use.
type Network interface {
	NewNamespace(id string) (string, error)
	AdoptNamespace(id, from string) (string, error)
	RemoveNamespace(id string) error
	Vacate(ctx context.Context, id string) error
	Setup(ctx context.Context, p cni.Pod) (cni.Result, error)
	Teardown(ctx context.Context, p cni.Pod) error
	Status() error
	Collect(ctx context.Context, live []string) error
	Purge(ctx context.Context) error
	Close() error
}

// Groups is what sandboxes and containers ask of the cgroup hierarchy. A path is that of a group below the mount point
// of each hierarchy, with a slash before it; settings are those of the OCI runtime specification (config-linux.md,
// control groups). To make, change or remove a group twice is no error.
type Groups interface {
	Create(path string, r *specs.LinuxResources) error // with all above it; nil: no settings
	Update(path string, r *specs.LinuxResources) error // fails where the kernel would kill somebody for it
	ProcsFiles(path string) []string                   // cgroup.procs, one a hierarchy
	Attach(path string, pid int) error                 // a process or group that is gone is no error
	Warm()                                             // makes the attachments of the next moments cheap
	Thaw(path string)                                  // lets what is frozen in it die
	Exists(path string) bool
	Remove(ctx context.Context, path string) error // with all in it, whose processes are killed
	Stat(path string) (cgroups.Usage, error)
	Detail(path string) (cgroups.Detail, error)
	Pids(path string) ([]int, error)
	MemoryDir(path string) string  // with memory.oom_control (v1) or memory.events (v2)
	FreezerDir(path string) string // with freezer.state (v1) or cgroup.freeze (v2); "" where there is none
}

// Images is the part of [image.Store] that containers use.
type Images interface {
	Get(ref string) (image.Image, error)
	GetModule(ref string) (image.Image, error) // for a handler of WebAssembly
}

// Mounts is what sandboxes and containers ask of the mount table and the directories of the host.
type Mounts interface {
	Prepare(m []*runtimeapi.Mount) error // makes what containers mount exist, and refuses what cannot be mounted
	MakeDir(path string) error           // with all above it
	Mount(m []snapshot.Mount, target string) error
	// MountShm mounts the file system of a pod's shared memory; an existing one is left alone. The owner and the mode
	// are those of its root.
	MountShm(target string, owner oci.Owner, mode fs.FileMode) error
	Pin(namespace, path string) error // an existing one is left alone
	Unmount(target string) error      // no error when nothing is mounted
}

// DefaultParent is the cgroup parent of pods that name none.
func (m *Host) DefaultParent() string { return m.ownGroup("berth") }

// LaunchCgroup is where launchers start containers, beside pods, so that a start is not charged to the pod, whose limit
// may be smaller than the launcher.
func (m *Host) LaunchCgroup() string { return m.ownGroup("berth", "launch") }

func (m *Host) ownGroup(names ...string) string {
	if m.Host.Systemd {
		return systemd.SlicePath(m.CgroupRoot, names...)
	}
	return path.Join(append([]string{"/", m.CgroupRoot}, names...)...)
}

// CgroupOf is the cgroup of a sandbox or container id, below parent, or below the default one where that is "".
func (m *Host) CgroupOf(parent, id string) string {
	if parent == "" {
		parent = m.DefaultParent()
	}
	return oci.CgroupPath(parent, id)
}

// OOMScore is the wanted value, or the lowest this process may set.
func (m *Host) OOMScore(want int) int { return max(want, m.Host.OOMScoreAdjMin) }

// BootID tells one boot of the machine from another.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b)), err
}
