package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
)

// fake is a runtime in memory. It outlives the managers that use it, as a real one does.
type fake struct {
	Runtime // whatever is not faked must not be called

	mu         sync.Mutex
	serial     int
	sandboxes  map[string]*fakeSandbox
	containers map[string]*fakeContainer
	images     map[string]*runtimeapi.Image // by reference
	registry   map[string]*runtimeapi.Image
	listeners  map[int]func(*runtimeapi.ContainerEventResponse)
	calls      []string

	// counted is what was written to a pod's layer, or a dead container's; nil: nothing.
	counted func(ctx context.Context, uid string) (inodes int, err error)

	refuse func(call string) error                // asked before each call, with its method and object
	during func(ctx context.Context, call string) // what happens in a call, without the lock
	// How long a container takes to end when it is told; negative: it does not listen.
	term    map[string]time.Duration
	exec    func(container string, cmd []string) (int32, error)
	mute    bool   // tells no events
	problem string // of all sandboxes
	plain   bool   // statuses of sandboxes do not tell of containers
}

type fakeSandbox struct {
	*runtimeapi.PodSandboxStatus
	config *runtimeapi.PodSandboxConfig
}

type fakeContainer struct {
	*runtimeapi.ContainerStatus
	sandbox string
	config  *runtimeapi.ContainerConfig
	ended   chan struct{}
}

func newFake() *fake {
	f := &fake{
		sandboxes: map[string]*fakeSandbox{}, containers: map[string]*fakeContainer{}, term: map[string]time.Duration{},
		images: map[string]*runtimeapi.Image{}, registry: map[string]*runtimeapi.Image{},
		listeners: map[int]func(*runtimeapi.ContainerEventResponse){},
	}
	f.images["app:1"] = &runtimeapi.Image{Id: "sha256:app1"}
	return f
}

// call notes what was called, and fails when it is to. It takes the lock.
// ContainerStats knows nothing, or how many files the container has.
func (f *fake) ContainerStats(
	ctx context.Context, r *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	if f.counted == nil {
		return &runtimeapi.ContainerStatsResponse{}, nil
	}
	inodes, err := f.counted(ctx, r.GetContainerId())
	return &runtimeapi.ContainerStatsResponse{Stats: &runtimeapi.ContainerStats{
		WritableLayer: &runtimeapi.FilesystemUsage{InodesUsed: &runtimeapi.UInt64Value{Value: uint64(inodes)}},
	}}, err
}

func (f *fake) call(ctx context.Context, name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	refuse, during := f.refuse, f.during
	f.mu.Unlock()
	if during != nil {
		during(ctx, name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if refuse != nil {
		if err := refuse(name); err != nil {
			return err
		}
	}
	f.mu.Lock()
	return nil
}

func (f *fake) called(prefix string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.calls {
		if strings.HasPrefix(c, prefix) {
			out = append(out, c)
		}
	}
	return out
}

// tell sends an event. The lock is held.
func (f *fake) tell(id, sandbox string, t runtimeapi.ContainerEventType) {
	if f.mute {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: t, CreatedAt: time.Now().UnixNano()}
	if s := f.sandboxes[sandbox]; s != nil {
		e.PodSandboxStatus = cloneSandbox(s)
	}
	for _, fn := range f.listeners {
		fn(e)
	}
}

func cloneSandbox(s *fakeSandbox) *runtimeapi.PodSandboxStatus {
	return proto.CloneOf(s.PodSandboxStatus)
}

func cloneContainer(c *fakeContainer) *runtimeapi.ContainerStatus {
	return proto.CloneOf(c.ContainerStatus)
}

func notFound(id string) error { return grpcstatus.Errorf(codes.NotFound, "%s not found", id) }

func (f *fake) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if err := f.call(ctx, "Version"); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return &runtimeapi.VersionResponse{RuntimeName: "fake"}, nil
}

func (f *fake) Status(ctx context.Context, _ *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{}, nil
}

func (f *fake) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	f.mu.Lock()
	f.serial++
	n := f.serial
	f.listeners[n] = fn
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listeners, n)
	return ctx.Err()
}

func (f *fake) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	m := r.GetConfig().GetMetadata()
	if err := f.call(ctx, "RunPodSandbox "+m.GetName()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	f.serial++
	id := fmt.Sprintf("sandbox-%d", f.serial)
	f.sandboxes[id] = &fakeSandbox{config: r.GetConfig(), PodSandboxStatus: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: m, CreatedAt: time.Now().UnixNano(), Labels: r.GetConfig().GetLabels(), Annotations: r.GetConfig().GetAnnotations(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("10.0.0.%d", f.serial)},
	}}
	f.tell(id, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (f *fake) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := f.call(ctx, "StopPodSandbox "+r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound(r.GetPodSandboxId())
	}
	for _, c := range f.containers {
		if c.sandbox == s.GetId() {
			f.end(c, 137)
		}
	}
	s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	f.tell(s.GetId(), s.GetId(), runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (f *fake) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := f.call(ctx, "RemovePodSandbox "+r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	delete(f.sandboxes, r.GetPodSandboxId())
	maps.DeleteFunc(f.containers, func(_ string, c *fakeContainer) bool { return c.sandbox == r.GetPodSandboxId() })
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (f *fake) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound(r.GetPodSandboxId())
	}
	out := &runtimeapi.PodSandboxStatusResponse{Status: cloneSandbox(s)}
	if f.problem != "" {
		out.Info = map[string]string{infoProblem: f.problem}
	}
	if !f.plain {
		out.Timestamp = time.Now().UnixNano()
		for _, c := range f.containers {
			if c.sandbox == s.GetId() {
				out.ContainersStatuses = append(out.ContainersStatuses, cloneContainer(c))
			}
		}
	}
	return out, nil
}

func selected(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (f *fake) ListPodSandbox(ctx context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range f.sandboxes {
		if selected(s.GetLabels(), r.GetFilter().GetLabelSelector()) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{
				Id: s.GetId(), Metadata: s.GetMetadata(), State: s.GetState(), CreatedAt: s.GetCreatedAt(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
			})
		}
	}
	return out, nil
}

func (f *fake) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	m := r.GetConfig().GetMetadata()
	if err := f.call(ctx, "CreateContainer "+m.GetName()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil || s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil, notFound(r.GetPodSandboxId())
	}
	for _, c := range f.containers {
		if c.sandbox == s.GetId() && c.GetMetadata().GetName() == m.GetName() && c.GetMetadata().GetAttempt() == m.GetAttempt() {
			return nil, grpcstatus.Errorf(codes.AlreadyExists, "attempt %d of %s", m.GetAttempt(), m.GetName())
		}
	}
	f.serial++
	id := fmt.Sprintf("%s-%d", m.GetName(), m.GetAttempt())
	if f.containers[id] != nil {
		id = fmt.Sprintf("%s.%d", id, f.serial)
	}
	f.containers[id] = &fakeContainer{sandbox: s.GetId(), config: r.GetConfig(), ended: make(chan struct{}), ContainerStatus: &runtimeapi.ContainerStatus{
		Id: id, Metadata: m, CreatedAt: time.Now().UnixNano(), Labels: r.GetConfig().GetLabels(), Annotations: r.GetConfig().GetAnnotations(),
		Image: r.GetConfig().GetImage(), ImageRef: r.GetConfig().GetImage().GetImage(),
		LogPath: r.GetSandboxConfig().GetLogDirectory() + "/" + r.GetConfig().GetLogPath(),
	}}
	f.tell(id, s.GetId(), runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func (f *fake) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	if err := f.call(ctx, "StartContainer "+r.GetContainerId()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	c := f.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound(r.GetContainerId())
	}
	c.State, c.StartedAt = plan.Running, time.Now().UnixNano()
	f.tell(c.GetId(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.StartContainerResponse{}, nil
}

// end ends a container that runs. The lock is held.
func (f *fake) end(c *fakeContainer, code int32) {
	if c.State != plan.Running {
		return
	}
	c.State, c.FinishedAt, c.ExitCode = plan.Exited, time.Now().UnixNano(), code
	close(c.ended)
	f.tell(c.GetId(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// exit makes the container with the ID exit by itself.
func (f *fake) exit(id string, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(f.containers[id], code)
}

// loseAll makes all sandboxes die, as they do when the node boots; their containers are killed with them or live on.
func (f *fake) loseAll(killed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, s := range f.sandboxes {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range f.containers {
			if c.sandbox == id && killed {
				f.end(c, 255)
			}
		}
		f.tell(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// locked changes the fake while it is in use.
func (f *fake) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	if err := f.call(ctx, fmt.Sprintf("StopContainer %s %d", r.GetContainerId(), r.GetTimeout())); err != nil {
		return nil, err
	}
	c := f.containers[r.GetContainerId()]
	if c == nil {
		f.mu.Unlock()
		return nil, notFound(r.GetContainerId())
	}
	takes, code := f.term[c.GetMetadata().GetName()], int32(143)
	if limit := time.Duration(r.GetTimeout()) * time.Second; takes < 0 || takes > limit {
		takes, code = limit, 137
	}
	f.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-c.ended:
	case <-ctx.Done(): // gRPC's word for it
		return nil, grpcstatus.FromContextError(ctx.Err()).Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(c, code)
	return &runtimeapi.StopContainerResponse{}, nil
}

func (f *fake) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if err := f.call(ctx, "RemoveContainer "+r.GetContainerId()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	delete(f.containers, r.GetContainerId())
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f *fake) ListContainers(ctx context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for _, c := range f.containers {
		if id := r.GetFilter().GetPodSandboxId(); id != "" && id != c.sandbox {
			continue
		}
		if selected(c.GetLabels(), r.GetFilter().GetLabelSelector()) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id: c.GetId(), PodSandboxId: c.sandbox, Metadata: c.GetMetadata(), Image: c.GetImage(), State: c.GetState(),
				CreatedAt: c.GetCreatedAt(), Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
			})
		}
	}
	return out, nil
}

func (f *fake) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound(r.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: cloneContainer(c)}, nil
}

func (f *fake) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	if err := f.call(ctx, "CheckpointContainer "+r.GetContainerId()); err != nil {
		return nil, err
	}
	f.mu.Unlock()
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

func (f *fake) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if err := f.call(ctx, "ExecSync "+r.GetContainerId()+" "+strings.Join(r.GetCmd(), " ")); err != nil {
		return nil, err
	}
	run := f.exec
	f.mu.Unlock()
	if len(r.GetCmd()) == 2 && r.GetCmd()[0] == "sleep" {
		d, err := time.ParseDuration(r.GetCmd()[1])
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if run == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	code, err := run(r.GetContainerId(), r.GetCmd())
	return &runtimeapi.ExecSyncResponse{ExitCode: code}, err
}

func (f *fake) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if err := f.call(ctx, "ImageStatus "+r.GetImage().GetImage()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	for ref, img := range f.images {
		if ref == r.GetImage().GetImage() || img.GetId() == r.GetImage().GetImage() {
			return &runtimeapi.ImageStatusResponse{Image: img}, nil
		}
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (f *fake) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := r.GetImage().GetImage()
	if err := f.call(ctx, "PullImage "+ref); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	img := f.registry[ref]
	if img == nil {
		img = f.images[ref]
	}
	if img == nil {
		return nil, grpcstatus.Errorf(codes.NotFound, "no such image in the registry")
	}
	f.images[ref] = img
	return &runtimeapi.PullImageResponse{ImageRef: img.GetId()}, nil
}

// state is what runs, as "pod/container".
func (f *fake) running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.containers {
		if c.GetState() == plan.Running {
			out = append(out, c.GetId())
		}
	}
	slices.Sort(out)
	return out
}

func (f *fake) UpdateContainerResources(_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.GetContainerId()]
	if c == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such container")
	}
	c.config.Linux.Resources = r.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// fakeCgroups and fakeVolumes keep sets of pods.
type fakeCgroups struct {
	mu     sync.Mutex
	pods   map[types.UID]bool
	refuse func() error // a resize
	killed func(ids []string)
}

func (c *fakeCgroups) PodPath(pod *corev1.Pod) string { return "/pods/pod" + string(pod.UID) }

func (c *fakeCgroups) EnsurePod(pod *corev1.Pod) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[pod.UID] = true
	return c.PodPath(pod), nil
}

func (c *fakeCgroups) ResizePod(_ *corev1.Pod, ids map[string]string, write func(string) error) error {
	if c.refuse != nil {
		if err := c.refuse(); err != nil {
			return err
		}
	}
	for name := range ids {
		if err := write(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *fakeCgroups) RemovePod(_ context.Context, uid types.UID, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, uid)
	return nil
}

func (c *fakeCgroups) KillIn(_ context.Context, _ types.UID, ids []string) error {
	if c.killed != nil {
		c.killed(ids)
	}
	return nil
}

func (c *fakeCgroups) Pods() ([]types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.pods)), nil
}
