package cri

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/class"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
)

// machine is what sandboxes and containers are made of.
type machine struct {
	runner
	paths   layout
	net     network
	cgroups groups
	keepers keepers
	snaps   snapshot.Snapshotter
	images  images
	mounts  mounts
	host    oci.Host
	armor   oci.AppArmor
	runtimes
	bootID  string
	cdi     *cdiDevices
	classes *class.Classes
	plugins atomic.Pointer[nri.Plugins] // nil before all pods are known, and where there are none
	log     *slog.Logger

	userNamespaces func() error // why pods cannot have ids of their own; nil where they can

	cgroupRoot  string
	logMaxSize  int64
	logMaxFiles int
}

// network is the part of [cni.Network] that sandboxes use.
type network interface {
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

// groups is what sandboxes and containers ask of the cgroup hierarchy.
type groups interface {
	Create(path string, r *specs.LinuxResources) error
	Update(path string, r *specs.LinuxResources) error
	ProcsFiles(path string) []string
	Attach(path string, pid int) error
	Warm()
	Thaw(path string) // lets what is frozen in it die
	Exists(path string) bool
	Remove(ctx context.Context, path string) error
	Stat(path string) (cgroups.Usage, error)
	Detail(path string) (cgroups.Detail, error)
	Pids(path string) ([]int, error)
	MemoryDir(path string) string
	FreezerDir(path string) string
}

// images is the part of [image.Store] that containers use.
type images interface {
	Get(ref string) (image.Image, error)
	GetModule(ref string) (image.Image, error) // for a handler of WebAssembly
}

// mounts is what sandboxes and containers ask of the mount table and the directories of the host.
type mounts interface {
	prepare(m []*runtimeapi.Mount) error // makes what containers mount exist, and refuses what cannot be mounted
	makeDir(path string) error           // with all above it
	mount(m []snapshot.Mount, target string) error
	mountShm(target string, owner oci.Owner) error // an existing one is left alone
	pin(namespace, path string) error              // an existing one is left alone
	unmount(target string) error                   // no error when nothing is mounted
}

// keepers starts and finds the processes that hold sandboxes.
type keepers interface {
	Start(ctx context.Context, c keeper.Config) (podKeeper, error)
	Open(ctx context.Context, id, dir string) (podKeeper, error)
	Await(ctx context.Context, id, dir string) (podKeeper, error)
	AwaitEnd(ctx context.Context, dir string) error
	Kill(dir string) error
	NewUserNS(uids, gids []syscall.SysProcIDMap, network bool) (userNS, error)
}

// userNS is a new [keeper.UserNS].
type userNS interface {
	Path(kind string) string
	Close() error
}

// podKeeper is a live [keeper.Keeper].
type podKeeper interface {
	Pid() int
	Pid1() int
	NSPath(kind string) string
	Run(ctx context.Context, c keeper.Container) (int, error)
	Signal(ctx context.Context, containerID string, sig unix.Signal) error
	Exits() ([]keeper.Exit, error)
	Watch(ctx context.Context, fn func(keeper.Exit)) error
	Forget(containerID string) error
	Exec(ctx context.Context, e keeper.Exec) (*keeper.Process, error)
	Captures(e keeper.Exec) bool
	Capture(ctx context.Context, e keeper.Exec, stdout, stderr io.Writer) (keeper.Exit, error)
	Attach(ctx context.Context, containerID string) (*keeper.Stream, error)
	ReopenLog(containerID string) error
	Resize(containerID string, w, h uint16) error
	Stop(ctx context.Context) error
	Quiet() bool
}

// realKeepers are processes of the helper binary.
type realKeepers struct{ helper *os.File }

func (r realKeepers) Start(ctx context.Context, c keeper.Config) (podKeeper, error) {
	c.Helper = r.helper
	k, err := keeper.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func (r realKeepers) Open(ctx context.Context, id, dir string) (podKeeper, error) {
	k, err := keeper.Open(ctx, id, dir)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func (r realKeepers) Await(ctx context.Context, id, dir string) (podKeeper, error) {
	k, err := keeper.Await(ctx, id, dir)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func (r realKeepers) AwaitEnd(ctx context.Context, dir string) error {
	return keeper.AwaitKeeper(ctx, dir)
}

func (r realKeepers) NewUserNS(uids, gids []syscall.SysProcIDMap, network bool) (userNS, error) {
	u, err := keeper.NewUserNS(r.helper, uids, gids, network)
	if err != nil {
		return nil, err
	}
	return u, nil
}

func (r realKeepers) Kill(dir string) error { return keeper.Kill(dir) }

// Used says whether a runtime has been on a root directory.
func Used(rootDir string) bool {
	_, err := os.Lstat(layout{root: rootDir}.db())
	return err == nil
}

// layout says where things are.
type layout struct{ root, run string }

func (l layout) db() string                 { return filepath.Join(l.root, "runtime.db") }
func (l layout) recordsCopy() string        { return filepath.Join(l.run, "records") } // of this boot
func (l layout) content() string            { return filepath.Join(l.root, "content") }
func (l layout) snapshots() string          { return filepath.Join(l.root, "snapshots") }
func (l layout) checkpoints() string        { return filepath.Join(l.root, "checkpoints") } // being made
func (l layout) netns() string              { return filepath.Join(l.run, "netns") }
func (l layout) ipam() string               { return filepath.Join(l.run, "ipam") }
func (l layout) cniCache() string           { return filepath.Join(l.run, "cni") }
func (l layout) sandboxes() string          { return filepath.Join(l.run, "sandboxes") }
func (l layout) containers() string         { return filepath.Join(l.run, "containers") }
func (l layout) state() string              { return filepath.Join(l.run, "libcontainer") }
func (l layout) sandbox(id string) string   { return filepath.Join(l.sandboxes(), id) }
func (l layout) keeper(id string) string    { return filepath.Join(l.sandbox(id), "keeper") }
func (l layout) record(id string) string    { return filepath.Join(l.sandbox(id), "record") }
func (l layout) shm(id string) string       { return filepath.Join(l.sandbox(id), "shm") }
func (l layout) userns(id string) string    { return filepath.Join(l.sandbox(id), "userns") }
func (l layout) container(id string) string { return filepath.Join(l.containers(), id) }
func (l layout) rootfs(id string) string    { return filepath.Join(l.container(id), "rootfs") }
func (l layout) runtimes() string           { return filepath.Join(l.run, "runtimes") }
func (l layout) spec(id string) string      { return filepath.Join(l.container(id), "config.json") }

// records are those of a sandbox's containers.
func (l layout) records(sandbox string) string {
	return filepath.Join(l.sandbox(sandbox), "containers")
}

func (l layout) ctrRecord(sandbox, id string) string { return filepath.Join(l.records(sandbox), id) }

func (l layout) filter(id string) string      { return filepath.Join(l.container(id), "seccomp.bpf") } // written by the launcher
func (l layout) imageMounts(id string) string { return filepath.Join(l.container(id), "images") }

// volatile are the directories whose content means nothing after a boot.
func (l layout) volatile() []string {
	return []string{l.sandboxes(), l.containers(), l.state(), l.runtimes()}
}

// defaultParent is the cgroup parent of pods that name none; beside them launchers start containers, so that a start is not
// charged to the pod, whose limit may be smaller than the launcher.
func (m *machine) defaultParent() string { return m.ownGroup("berth") }
func (m *machine) launchCgroup() string  { return m.ownGroup("berth", "launch") }

func (m *machine) ownGroup(names ...string) string {
	if m.host.Systemd {
		return systemd.SlicePath(m.cgroupRoot, names...)
	}
	return path.Join(append([]string{"/", m.cgroupRoot}, names...)...)
}

func (m *machine) cgroupOf(parent, id string) string {
	if parent == "" {
		parent = m.defaultParent()
	}
	return oci.CgroupPath(parent, id)
}

// oomScore is the wanted value, or the lowest this process may set.
func (m *machine) oomScore(want int) int { return max(want, m.host.OOMScoreAdjMin) }
