package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
	volumekind "github.com/berth-node/berth/agent/volume/kind"
)

// world is all that an environment is made of. It notes what is asked of it.
type world struct {
	mu        sync.Mutex
	calls     []string
	fails     string          // the call that does
	sandboxes map[string]bool // that the runtime has
	lives     string          // the container whose removal the runtime refuses
	root      string
	content   volume.Content // of the volumes that were made last
}

func (w *world) call(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, name)
	if name == w.fails {
		return errors.New("refused")
	}
	return nil
}

func (w *world) take() []string {
	defer func() { w.calls = nil }()
	return w.calls
}

func (w *world) Spec() *spec.Node        { return &spec.Node{Name: "node", RootDir: w.root} }
func (w *world) SandboxSpec() *spec.Node { return w.Spec() }

func (w *world) Handler(*corev1.Pod) (string, *runtimeapi.RuntimeHandlerFeatures) { return "", nil }

func (w *world) Begin(ctx context.Context, _ *corev1.Pod, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (w *world) Event(_ *corev1.Pod, _, reason, _ string, _ ...any) { _ = w.call("event " + reason) }

func (w *world) RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	w.mu.Lock()
	w.sandboxes["new"] = true
	w.mu.Unlock()
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: "new"}, w.call("run sandbox")
}

func (w *world) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return nil, w.call("stop sandbox " + r.GetPodSandboxId())
}

func (w *world) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return nil, w.call("stop container " + r.GetContainerId())
}

func (w *world) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if !w.sandboxes[r.GetPodSandboxId()] {
		return nil, grpcstatus.Error(codes.NotFound, "no such sandbox")
	}
	if err := w.refused(r.GetPodSandboxId() + "-main"); err != nil {
		return nil, errors.Join(w.call("refuse sandbox "+r.GetPodSandboxId()), err)
	}
	delete(w.sandboxes, r.GetPodSandboxId())
	return nil, w.call("remove sandbox " + r.GetPodSandboxId())
}

func (w *world) PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.1.2.3"},
	}}, nil
}

func (w *world) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for id := range w.sandboxes {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: id})
	}
	return out, nil
}

func (w *world) PodPath(p *corev1.Pod) string { return "/pods/" + string(p.UID) }

func (w *world) EnsurePod(p *corev1.Pod) (string, error) { return w.PodPath(p), w.call("make cgroup") }

func (w *world) KillIn(_ context.Context, uid types.UID, ids []string) error {
	w.mu.Lock()
	w.lives = ""
	w.mu.Unlock()
	return w.call(fmt.Sprintf("kill in %s %q", uid, ids))
}

func (w *world) ListContainers(
	_ context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	id := r.GetFilter().GetPodSandboxId()
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: id + "-main"}}},
		w.call("list containers of " + id)
}

func (w *world) RemoveContainer(
	_ context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	return nil, cmp.Or(w.call("remove container "+r.GetContainerId()), w.refused(r.GetContainerId()))
}

// refused is what containerd says of a container that it takes for one that never ran, and whose process lives.
func (w *world) refused(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lives == id {
		return grpcstatus.Errorf(codes.FailedPrecondition, "cannot delete running task %s", id)
	}
	return nil
}

func (w *world) RemovePod(context.Context, types.UID, string) error { return w.call("remove cgroup") }

func (w *world) Setup(_ context.Context, _ *corev1.Pod, content volume.Content) (map[string]string, error) {
	w.content = content
	return map[string]string{"v": "/volumes/v"}, w.call("make volumes")
}

func (w *world) Secrets(*corev1.Volume, *corev1.PersistentVolume) []volumekind.SecretRef { return nil }

func (w *world) ReadOnly(v *corev1.Volume, bound *corev1.PersistentVolume) bool {
	return v.NFS != nil || bound != nil && bound.Spec.NFS != nil
}

func (w *world) Bind(types.UID, string, func(volume.Taken) (string, error)) (string, error) {
	return "", nil
}

func (w *world) Teardown(_ context.Context, uid types.UID) error {
	return errors.Join(w.call("remove volumes"), os.RemoveAll(filepath.Join(w.root, "pods", string(uid))))
}

func (w *world) Release(context.Context, types.UID) error { return w.call("release volumes") }

// gift is a resource.
type gift struct {
	*world
	name string
}

func (g gift) Name() string                               { return g.name }
func (g gift) Prepare(context.Context, *corev1.Pod) error { return g.call("prepare " + g.name) }
func (g gift) Release(context.Context, *corev1.Pod) error { return g.call("release " + g.name) }

func newWorld(t *testing.T, groupFirst bool) (*world, *Maker) {
	t.Helper()
	w := &world{sandboxes: map[string]bool{}, root: t.TempDir()}
	return w, New(Config{
		Node: w, Runtime: w, Cgroups: w, Volumes: w, Resources: []Resource{gift{w, "cpus"}, gift{w, "devices"}}, Objects: new(object.Stores),
		RootDir: w.root, LogDir: filepath.Join(w.root, "logs"), Domain: "cluster.local", GroupFirst: groupFirst,
	})
}

// inOrder says whether all of the calls were made, one after the other.
func inOrder(calls []string, want ...string) bool {
	at := -1
	for _, one := range want {
		i := slices.Index(calls, one)
		if i <= at {
			return false
		}
		at = i
	}
	return true
}

func TestMakeAndRemove(t *testing.T) {
	w, m := newWorld(t, true)
	pod := podtest.New("web")
	if err := m.Of(pod, nil).Remove(t.Context()); err != nil {
		t.Errorf("of a pod that has nothing: %v", err)
	}
	w.take()
	e := m.Of(pod, nil)
	if err := e.Make(t.Context(), Wanted{}); err != nil {
		t.Fatal(err)
	}
	if calls := w.take(); !inOrder(calls, "prepare cpus", "prepare devices", "make cgroup", "run sandbox") || !slices.Contains(calls, "make volumes") {
		t.Errorf("made by %q", calls)
	}
	if path, ok := e.Volume("v"); e.Sandbox() != "new" || !ok || path != "/volumes/v" || e.SandboxConfig() == nil {
		t.Errorf("sandbox %q, volume %q %v, configuration %v", e.Sandbox(), path, ok, e.SandboxConfig())
	}
	if hosts, err := os.ReadFile(e.HostsFile()); err != nil || !strings.Contains(string(hosts), "10.1.2.3") {
		t.Errorf("hosts: %q, %v", hosts, err)
	}
	if got, ok := Definition(w.root, pod.UID); !ok || got.Name != "web" {
		t.Errorf("recorded: %v %v", got, ok)
	}
	// What is left is found, whoever looks.
	if err := m.Of(pod, nil).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"stop sandbox new", "remove sandbox new", "remove cgroup", "release devices", "release cpus", "remove volumes"}
	if calls := w.take(); !slices.Equal(calls, want) {
		t.Errorf("removed by %q", calls)
	}
	if left, err := filepath.Glob(w.root + "/*/*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestRefused: what lives in a container that the runtime refuses to remove is killed, and the runtime asked again.
// Nothing is killed of what it removes at once.
func TestRefused(t *testing.T) {
	w, m := newWorld(t, true)
	pod := podtest.New("web")
	w.sandboxes["a"], w.sandboxes["b"], w.lives = true, true, "b-main"
	if err := m.Of(pod, nil).RemoveSandbox(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := m.Of(pod, nil).RemoveSandbox(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"stop sandbox a", "remove sandbox a", "stop sandbox b", "refuse sandbox b", "list containers of b",
		fmt.Sprintf(`kill in %s ["b" "b-main"]`, pod.UID), "remove sandbox b",
	}
	if calls := w.take(); !slices.Equal(calls, want) {
		t.Errorf("removed by %q", calls)
	}
	remover := Remover{w, w}
	w.lives = "c"
	if err := remover.RemoveContainer(t.Context(), pod.UID, "c"); err != nil {
		t.Fatal(err)
	}
	want = []string{"remove container c", fmt.Sprintf(`kill in %s ["c"]`, pod.UID), "remove container c"}
	if calls := w.take(); !slices.Equal(calls, want) {
		t.Errorf("removed by %q", calls)
	}
	// What is refused for ever is told, as is what cannot be killed.
	w.lives, w.fails = "c", fmt.Sprintf(`kill in %s ["c"]`, pod.UID)
	if err := remover.RemoveContainer(t.Context(), pod.UID, "c"); grpcstatus.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
	w.fails = "remove container c"
	if err := remover.RemoveContainer(t.Context(), pod.UID, "c"); err == nil {
		t.Error("a removal that fails is none")
	}
}

// TestWanted: a sandbox that is there stays, and one that is no good goes before the next.
func TestWanted(t *testing.T) {
	w, m := newWorld(t, false)
	e := m.Of(podtest.New("web"), nil)
	if err := e.Make(t.Context(), Wanted{ID: "there"}); err != nil || e.Sandbox() != "there" {
		t.Fatalf("sandbox %q, %v", e.Sandbox(), err)
	}
	if calls := w.take(); slices.Contains(calls, "run sandbox") {
		t.Errorf("made by %q", calls)
	}
	if err := m.Of(podtest.New("web"), nil).Make(t.Context(), Wanted{Before: "there", Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	if calls := w.take(); !inOrder(calls, "event SandboxChanged", "stop sandbox there", "run sandbox") {
		t.Errorf("made by %q", calls)
	}
}

// TestFailure: the part that has failed is told, what comes behind it is not begun, and what comes before what is left
// stays.
func TestFailure(t *testing.T) {
	w, m := newWorld(t, false)
	var part *Error
	w.fails = "prepare devices"
	if err := m.Of(podtest.New("web"), nil).Make(t.Context(), Wanted{}); !errors.As(err, &part) || part.Part != "devices" {
		t.Errorf("got %v", err)
	}
	if calls := w.take(); slices.Contains(calls, "run sandbox") {
		t.Errorf("made by %q", calls)
	}
	w.fails = "make volumes"
	if err := m.Of(podtest.New("web"), nil).Make(t.Context(), Wanted{}); !errors.As(err, &part) || part.Part != PartVolumes {
		t.Errorf("got %v", err)
	}
	if _, err := m.Of(podtest.New("web"), nil).Renewed(t.Context(), podtest.New("web")); !errors.As(err, &part) || part.Part != PartVolumes {
		t.Errorf("got %v", err)
	}
	w.take()
	w.fails = "stop sandbox new"
	if err := m.Of(podtest.New("web"), nil).Remove(t.Context()); !errors.As(err, &part) || part.Part != PartSandbox {
		t.Errorf("got %v", err)
	}
	if calls := w.take(); slices.Contains(calls, "remove cgroup") {
		t.Errorf("removed by %q", calls)
	}
}

// TestRenewed: volumes tell of the pod as it is defined now, not as it was when its environment was made.
func TestRenewed(t *testing.T) {
	w, m := newWorld(t, false)
	pod := podtest.New("web")
	pod.Annotations = map[string]string{"builder": "first"}
	pod.Spec.Volumes = []corev1.Volume{{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{
			Path: "builder", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['builder']"},
		}},
	}}}}
	e := m.Of(pod, nil)
	if err := e.Make(t.Context(), Wanted{}); err != nil {
		t.Fatal(err)
	}
	changed := pod.DeepCopy()
	changed.Annotations["builder"] = "second"
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{{changed, "second"}, {pod, "first"}} {
		if _, err := e.Renewed(t.Context(), c.pod); err != nil {
			t.Fatal(err)
		}
		if f := w.content.Files["info"]; len(f) != 1 || string(f[0].Data) != c.want {
			t.Errorf("the volume has %+v, want %s", f, c.want)
		}
	}
}

// TestRelease: the directory of a pod that is over is there for what is kept, also when it had none.
func TestRelease(t *testing.T) {
	w, m := newWorld(t, false)
	pod := podtest.New("web")
	kept := errors.New("not kept")
	if err := m.Of(pod, []string{"a", "b"}).Release(t.Context(), func() error { return kept }); !errors.Is(err, kept) {
		t.Errorf("got %v", err)
	}
	want := []string{"stop sandbox a", "stop sandbox b", "remove cgroup", "release devices", "release cpus"}
	if calls := w.take(); !slices.Equal(calls, want) {
		t.Errorf("released by %q", calls)
	}
	message := spec.MessageFile(w.root, string(pod.UID), "main", 0)
	err := m.Of(pod, nil).Release(t.Context(), func() error { return KeepMessages(map[string]string{message: "done"}) })
	if err != nil {
		t.Fatal(err)
	}
	if calls := w.take(); !inOrder(calls, "release cpus", "release volumes") {
		t.Errorf("released by %q", calls)
	}
	if said, err := os.ReadFile(message); err != nil || string(said) != "done" {
		t.Errorf("kept %q, %v", said, err)
	}
	if _, ok := Definition(w.root, pod.UID); !ok {
		t.Error("the pod has no record")
	}
}

// TestReleaseWithoutRoom: what a pod had is given back where nothing can be written down, and that is told of.
func TestReleaseWithoutRoom(t *testing.T) {
	w, m := newWorld(t, false)
	full := func() error { return fmt.Errorf("record: %w", unix.ENOSPC) }
	err := m.Of(podtest.New("web"), nil).Release(t.Context(), full)
	if unrecorded := (*Unrecorded)(nil); !errors.As(err, &unrecorded) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if calls := w.take(); !inOrder(calls, "release cpus", "release volumes") {
		t.Errorf("released by %q", calls)
	}
}

// TestHostsOfAnyLength has a container write to its /etc/hosts, far more than there is memory.
func TestHostsOfAnyLength(t *testing.T) {
	w, m := newWorld(t, true)
	e := m.Of(podtest.New("web"), nil)
	for _, size := range []int64{0, 1, 1 << 40} {
		if err := e.Make(t.Context(), Wanted{}); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(e.HostsFile())
		if err == nil {
			err = os.Truncate(e.HostsFile(), size)
		}
		if err == nil {
			err = e.Make(t.Context(), Wanted{})
		}
		if err != nil {
			t.Fatal(err)
		}
		if has, err := os.ReadFile(e.HostsFile()); err != nil || string(has) != string(want) {
			t.Errorf("of %d bytes: %q, %v", size, has, err)
		}
	}
	w.take()
}
