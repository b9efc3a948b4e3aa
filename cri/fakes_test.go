package cri

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/class"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/plugins"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

// fakeWorld stands in for the kernel: it remembers what exists, and fails where it is told to.
type fakeWorld struct {
	mu    sync.Mutex
	have  map[string]bool // "netns ID", "network ID", "cgroup PATH", "keeper ID", "mount PATH", "snapshot KEY"
	fail  map[string]error
	kept  map[string]*fakeKeeper
	image image.Image
}

func newWorld() *fakeWorld {
	return &fakeWorld{
		have: map[string]bool{}, fail: map[string]error{}, kept: map[string]*fakeKeeper{},
		image: image.Image{ID: "sha256:1", Tags: []string{"img:1"}, Digests: []string{"img@sha256:2"}, Config: ocispec.Image{Config: ocispec.ImageConfig{Cmd: []string{"/app"}}}},
	}
}

// do makes or removes a thing, unless "verb kind" is to fail.
func (w *fakeWorld) do(verb, kind, id string, exists bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fail[verb+" "+kind]; err != nil {
		return err
	}
	if exists {
		w.have[kind+" "+id] = true
	} else {
		delete(w.have, kind+" "+id)
	}
	return nil
}

func (w *fakeWorld) failing(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail[what] = err
}

// left lists what exists.
func (w *fakeWorld) left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for k := range w.have {
		out = append(out, k)
	}
	return out
}

// as is another world, in which everything is as it is here at the moment.
func (w *fakeWorld) as() *fakeWorld {
	w.mu.Lock()
	defer w.mu.Unlock()
	other := &fakeWorld{have: maps.Clone(w.have), fail: maps.Clone(w.fail), kept: map[string]*fakeKeeper{}, image: w.image}
	for id, k := range w.kept {
		other.kept[id] = k.in(other)
	}
	return other
}

func (w *fakeWorld) keeper(id string) *fakeKeeper {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[id]
}

type fakeNet struct{ *fakeWorld }

func (n fakeNet) NewNamespace(id string) (string, error) {
	return "/netns/" + id, n.do("make", "netns", id, true)
}
func (n fakeNet) AdoptNamespace(id, _ string) (string, error) { return n.NewNamespace(id) }
func (n fakeNet) RemoveNamespace(id string) error             { return n.do("remove", "netns", id, false) }

func (n fakeNet) Setup(_ context.Context, p cni.Pod) (cni.Result, error) {
	return cni.Result{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}, n.do("make", "network", p.ID, true)
}

func (n fakeNet) Teardown(_ context.Context, p cni.Pod) error {
	return n.do("remove", "network", p.ID, false)
}

func (n fakeNet) Vacate(_ context.Context, id string) error {
	return n.do("vacate", "namespace", id, false)
}
func (n fakeNet) Status() error                           { return n.fail["status network"] }
func (n fakeNet) Collect(context.Context, []string) error { return nil }
func (n fakeNet) Purge(context.Context) error             { return nil }
func (n fakeNet) Close() error                            { return nil }

type fakeGroups struct{ *fakeWorld }

func (g fakeGroups) Create(path string, _ *specs.LinuxResources) error {
	return g.do("make", "cgroup", path, true)
}

func (g fakeGroups) Update(path string, _ *specs.LinuxResources) error {
	return g.do("update", "nothing", path, false)
}
func (g fakeGroups) ProcsFiles(path string) []string { return []string{path + "/cgroup.procs"} }
func (g fakeGroups) Attach(string, int) error        { return nil }
func (g fakeGroups) Exists(string) bool              { return false }
func (g fakeGroups) Warm()                           {}
func (g fakeGroups) Thaw(string)                     {}
func (g fakeGroups) Remove(_ context.Context, path string) error {
	return g.do("remove", "cgroup", path, false)
}

func (g fakeGroups) Stat(string) (cgroups.Usage, error) {
	return cgroups.Usage{Time: time.Unix(1, 0)}, nil
}
func (g fakeGroups) Detail(string) (cgroups.Detail, error) { return cgroups.Detail{}, nil }
func (g fakeGroups) Pids(string) ([]int, error)            { return nil, nil }
func (g fakeGroups) MemoryDir(path string) string          { return path }
func (g fakeGroups) FreezerDir(path string) string         { return path }

type fakeMounts struct{ *fakeWorld }

func (m fakeMounts) Prepare([]*runtimeapi.Mount) error { return nil }
func (m fakeMounts) MakeDir(string) error              { return nil }
func (m fakeMounts) Mount(_ []snapshot.Mount, target string) error {
	return m.do("make", "mount", target, true)
}

func (m fakeMounts) MountShm(target string, _ oci.Owner, _ fs.FileMode) error {
	return errors.Join(os.MkdirAll(target, 0o700), m.do("make", "mount", target, true))
}
func (m fakeMounts) Pin(_, path string) error { return m.do("make", "mount", path, true) }
func (m fakeMounts) Unmount(target string) error {
	if err := m.do("remove", "mount", target, false); err != nil || filepath.Base(target) != "shm" {
		return err
	}
	return os.RemoveAll(target) // what is in a tmpfs goes with it
}

type fakeSnaps struct {
	snapshot.Snapshotter
	*fakeWorld
}

func (s fakeSnaps) Prepare(_ context.Context, key, _ string) ([]snapshot.Mount, error) {
	return nil, s.do("make", "snapshot", key, true)
}

func (s fakeSnaps) View(_ context.Context, key, _ string) ([]snapshot.Mount, error) {
	return nil, s.do("make", "snapshot", key, true)
}

func (s fakeSnaps) Remove(_ context.Context, key string) error {
	return s.do("remove", "snapshot", key, false)
}
func (s fakeSnaps) Clean(context.Context) error { return nil }
func (s fakeSnaps) Swept(context.Context) error { return nil }
func (s fakeSnaps) List() []snapshot.Info       { return nil }
func (s fakeSnaps) Name() string                { return "fake" }

type fakeImages struct{ *fakeWorld }

func (i fakeImages) GetModule(ref string) (image.Image, error) { return i.Get(ref) }

func (i fakeImages) Get(ref string) (image.Image, error) {
	if ref != "img" {
		return image.Image{}, image.ErrNotFound
	}
	return i.image, nil
}

type fakeKeepers struct{ *fakeWorld }

func (f fakeKeepers) Start(_ context.Context, c keeper.Config) (host.Keeper, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["make keeper"]; err != nil {
		return nil, err
	}
	k := &fakeKeeper{world: f.fakeWorld, id: c.ID, gone: make(chan struct{}), exits: make(chan keeper.Exit, 100), running: map[string]bool{}, started: map[string]bool{}}
	f.have["keeper "+c.ID], f.kept[c.ID] = true, k
	return k, nil
}

func (f fakeKeepers) Open(_ context.Context, id, _ string) (host.Keeper, error) {
	if k := f.keeper(id); k != nil {
		return k, nil
	}
	return nil, keeper.ErrGone
}

func (f fakeKeepers) Await(ctx context.Context, id, dir string) (host.Keeper, error) {
	return f.Open(ctx, id, dir)
}

func (f fakeKeepers) AwaitEnd(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f fakeKeepers) NewUserNS([]syscall.SysProcIDMap, []syscall.SysProcIDMap, bool) (host.UserNS, error) {
	return fakeUserNS{}, nil
}

type fakeUserNS struct{}

func (fakeUserNS) Path(kind string) string { return "/fake/" + kind }
func (fakeUserNS) Close() error            { return nil }

func (f fakeKeepers) Kill(dir string) error {
	id := filepath.Base(filepath.Dir(dir))
	if k := f.keeper(id); k != nil {
		return k.Stop(context.Background())
	}
	return f.do("remove", "keeper", id, false)
}

// fakeKeeper runs containers that do nothing until they are signalled.
type fakeKeeper struct {
	world *fakeWorld
	id    string
	gone  chan struct{}
	exits chan keeper.Exit

	mu       sync.Mutex
	running  map[string]bool
	started  map[string]bool
	recorded []keeper.Exit
	signals  []unix.Signal
	runErr   error
	stubborn bool            // only SIGKILL ends a container
	deaf     bool            // nothing does
	early    func(id string) // called before Run answers
	tooLate  func()          // called by the next Signal, which then finds the keeper gone
}

// in is the keeper in another world.
func (k *fakeKeeper) in(w *fakeWorld) *fakeKeeper {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &fakeKeeper{
		world: w, id: k.id, gone: make(chan struct{}), exits: make(chan keeper.Exit, 100),
		running: maps.Clone(k.running), started: maps.Clone(k.started), recorded: slices.Clone(k.recorded), signals: slices.Clone(k.signals),
		runErr: k.runErr, stubborn: k.stubborn, deaf: k.deaf,
	}
}

func (k *fakeKeeper) Pid() int                  { return 4242 }
func (k *fakeKeeper) Pid1() int                 { return 0 }
func (k *fakeKeeper) Quiet() bool               { return false }
func (k *fakeKeeper) StartsInScopes() bool      { return true }
func (k *fakeKeeper) NSPath(kind string) string { return "/proc/4242/ns/" + kind }

func (k *fakeKeeper) Run(_ context.Context, c keeper.Container) (int, error) {
	k.mu.Lock()
	err, early := k.runErr, k.early
	again := k.started[c.ID]
	if err == nil && !again {
		k.running[c.ID], k.started[c.ID] = true, true
	}
	k.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if again {
		return 4243, nil
	}
	if early != nil {
		early(c.ID)
	}
	return 4243, nil
}

// exit ends a container.
func (k *fakeKeeper) exit(e keeper.Exit) {
	k.mu.Lock()
	if !k.running[e.ContainerID] {
		k.mu.Unlock()
		return
	}
	k.running[e.ContainerID] = false
	e.FinishedAt = time.Now()
	k.recorded = append(k.recorded, e)
	k.mu.Unlock()
	k.exits <- e
}

func (k *fakeKeeper) Signal(_ context.Context, id string, sig unix.Signal) error {
	k.mu.Lock()
	k.signals = append(k.signals, sig)
	run, stubborn, deaf, tooLate := k.running[id], k.stubborn, k.deaf, k.tooLate
	k.tooLate = nil
	k.mu.Unlock()
	if tooLate != nil {
		tooLate()
		return keeper.ErrGone
	}
	if !run {
		return keeper.ErrNotFound
	}
	if !deaf && (sig == unix.SIGKILL || !stubborn) {
		k.exit(keeper.Exit{ContainerID: id, Code: 128 + int(sig), Signal: int(sig)})
	}
	return nil
}

func (k *fakeKeeper) sent() []unix.Signal {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]unix.Signal(nil), k.signals...)
}

func (k *fakeKeeper) Exits() ([]keeper.Exit, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]keeper.Exit(nil), k.recorded...), nil
}

func (k *fakeKeeper) Watch(ctx context.Context, fn func(keeper.Exit)) error {
	told := map[string]bool{}
	tell := func(e keeper.Exit) {
		if !told[e.ContainerID] {
			told[e.ContainerID] = true
			fn(e)
		}
	}
	recorded, _ := k.Exits()
	for _, e := range recorded {
		tell(e)
	}
	for {
		select {
		case e := <-k.exits:
			tell(e)
		case <-k.gone:
			return keeper.ErrGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *fakeKeeper) Forget(string) error                 { return nil }
func (k *fakeKeeper) ReopenLog(string) error              { return nil }
func (k *fakeKeeper) Resize(string, uint16, uint16) error { return nil }
func (k *fakeKeeper) Attach(context.Context, string) (*keeper.Stream, error) {
	return nil, errors.ErrUnsupported
}

func (k *fakeKeeper) Captures(keeper.Exec) bool { return true }

func (k *fakeKeeper) Capture(context.Context, keeper.Exec, io.Writer, io.Writer) (keeper.Exit, error) {
	return keeper.Exit{}, errors.ErrUnsupported
}

func (k *fakeKeeper) Exec(context.Context, keeper.Exec) (*keeper.Process, error) {
	return nil, errors.ErrUnsupported
}

func (k *fakeKeeper) Stop(context.Context) error {
	if err := k.world.do("remove", "keeper", k.id, false); err != nil {
		return err
	}
	k.die()
	return nil
}

func (k *fakeKeeper) die() {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.world.kept[k.id] == k {
		delete(k.world.kept, k.id)
		close(k.gone)
	}
}

// fakeServer is a Server whose kernel is w. dir keeps its records, for another one to take over.
func fakeServer(t testing.TB, w *fakeWorld, dir string) *Server {
	t.Helper()
	db, err := store.Open(store.Config{Path: filepath.Join(dir, "runtime.db")})
	if err != nil {
		t.Fatal(err)
	}
	r := &core{tasks: background.New(), hub: &events.Hub{}, db: db, images: &imageService{imported: make(chan struct{})}}
	r.log = discard()
	r.closers = append(r.closers, db.Close)
	classes, err := class.Open("")
	if err != nil {
		t.Fatal(err)
	}
	r.host = &host.Host{
		Classes: classes, Plugins: plugins.New(r.log),
		Paths: host.Layout{Root: dir, Run: dir}, Net: fakeNet{w}, Cgroups: fakeGroups{w}, UserNamespaces: func() error { return nil }, Keepers: fakeKeepers{w}, Snaps: fakeSnaps{fakeWorld: w},
		Images: fakeImages{w}, Mounts: fakeMounts{w}, BootID: "boot", Log: r.log, Host: oci.Host{Hostname: "node"},
	}
	if r.host.Runtimes.Handlers, err = handler.Open(handler.Config{LookPath: exec.LookPath}); err != nil {
		t.Fatal(err)
	}
	if err := r.openTables(nil); err != nil {
		t.Fatal(err)
	}
	if err := r.recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.urls = &urls{nil, r.ctrs, r.pods}
	return newServer(r)
}

// closing ends the server when the test ends.
func closing(t *testing.T, s *Server) *Server {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name}, Hostname: name,
		Labels: map[string]string{"app": name},
		Linux:  &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/pods/" + name},
	}
}

func containerConfig(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "img"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

// runPod runs a sandbox.
func runPod(t *testing.T, s *Server, name string) string {
	t.Helper()
	r, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig(name)})
	if err != nil {
		t.Fatal(err)
	}
	return r.PodSandboxId
}

// createContainer makes a container in a sandbox.
func createContainer(t *testing.T, s *Server, sandbox, name string) string {
	t.Helper()
	r, err := s.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: containerConfig(name)})
	if err != nil {
		t.Fatal(err)
	}
	return r.ContainerId
}

func startContainer(t *testing.T, s *Server, id string) {
	t.Helper()
	if _, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
}

func statusOf(t *testing.T, s *Server, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	r, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status
}

// waitExited waits until the container has ended.
func waitExited(t *testing.T, s *Server, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	c, err := s.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done
	return statusOf(t, s, id)
}

func hasPrefix(list []string, prefix string) bool {
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
