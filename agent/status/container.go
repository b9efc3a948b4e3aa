package status

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RestartCountAnnotation is where a container says how often its predecessors were restarted.
const RestartCountAnnotation = "io.kubernetes.container.restartCount"

const maxSignal = 64

type builder struct {
	in          Input
	by          map[string][]*runtimeapi.ContainerStatus
	initialized bool
}

// isInitialized says whether the init containers are over with. Once one of the pod's containers was made in a sandbox
// they are, whatever has become of their records.
func (b *builder) isInitialized() bool {
	for i := range b.in.Pod.Spec.Containers {
		if len(b.by[b.in.Pod.Spec.Containers[i].Name]) > 0 {
			return true
		}
	}
	for i := range b.in.Pod.Spec.InitContainers {
		c := &b.in.Pod.Spec.InitContainers[i]
		if !b.done(c) {
			return false
		}
	}
	return true
}

// done says whether an init container lets the next one start.
func (b *builder) done(c *corev1.Container) bool {
	list := b.by[c.Name]
	if len(list) == 0 {
		return false
	}
	if IsSidecar(c) {
		return b.started(c, list[0])
	}
	return list[0].GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && list[0].GetExitCode() == 0
}

func (b *builder) started(c *corev1.Container, s *runtimeapi.ContainerStatus) bool {
	return s.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && !b.in.Starting[c.Name] &&
		(c.StartupProbe == nil || b.in.Probes[c.Name].StartupOK)
}

func (b *builder) container(c *corev1.Container, init bool) corev1.ContainerStatus {
	list := b.by[c.Name]
	st := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(false)}
	if len(c.Resources.Requests) > 0 || len(c.Resources.Limits) > 0 {
		st.Resources = c.Resources.DeepCopy()
		st.AllocatedResources = c.Resources.Requests.DeepCopy()
	}
	if has, ok := b.in.Resources[c.Name]; ok && (st.Resources != nil || len(has.Requests) > 0 || len(has.Limits) > 0) {
		st.Resources = has.DeepCopy()
	}
	st.VolumeMounts = volumeMounts(c)
	st.AllocatedResourcesStatus = b.in.Devices[c.Name]
	if len(list) == 0 && b.in.Shed {
		return b.shed(st, init)
	}
	if len(list) == 0 {
		st.State.Waiting = b.waiting(c.Name, init)
		return st
	}
	now := list[0]
	st.ContainerID = b.in.Runtime + "://" + now.GetId()
	st.Image, st.ImageID = image(c, now), now.GetImageRef()
	st.RestartCount = RestartCount(now)
	st.User, st.StopSignal = user(now), stopSignal(now)
	for _, before := range list[1:] {
		if before.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			st.LastTerminationState.Terminated = b.terminated(before)
			break
		}
	}
	b.state(c, now, init, &st)

	isStarted := b.started(c, now)
	if init && !IsSidecar(c) {
		st.Ready = st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
		return st
	}
	st.Started = &isStarted
	st.Ready = isStarted && (c.ReadinessProbe == nil || b.in.Probes[c.Name].ReadinessOK)
	return st
}

// shed is the status of a container that was removed when its pod had ended: what was said of it last, also that it
// never ran. That it ran is all that is known when nobody remembers, which kubelet says so.
func (b *builder) shed(st corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	var before []corev1.ContainerStatus
	if b.in.Old != nil {
		before = slices.Concat(b.in.Old.InitContainerStatuses, b.in.Old.ContainerStatuses, b.in.Old.EphemeralContainerStatuses)
	}
	for i := range before {
		if b := &before[i]; b.Name == st.Name && (b.State.Terminated != nil || b.State.Waiting != nil && b.ContainerID == "") {
			return *b
		}
	}
	st.State.Terminated = &corev1.ContainerStateTerminated{
		Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated", ExitCode: unknownExit,
	}
	if init {
		st.Started = nil
	}
	return st
}

// unknownExit is the exit code of a container of which it is not known, as kubelet has it: that of one that was killed.
const unknownExit = 137

// ephemeral is the status of a container that was added to the pod: it is neither started nor ready, since nobody waits
// for it.
func (b *builder) ephemeral(e *corev1.EphemeralContainer) corev1.ContainerStatus {
	st := b.container((*corev1.Container)(&e.EphemeralContainerCommon), false)
	st.Started, st.Ready = nil, false
	if st.State.Waiting != nil && st.State.Waiting.Reason == PodInitializing {
		st.State.Waiting.Reason = ContainerCreating // it does not wait for the pod's own
	}
	return st
}

// state fills in the state, and the last one where that depends on it.
func (b *builder) state(c *corev1.Container, now *runtimeapi.ContainerStatus, init bool, st *corev1.ContainerStatus) {
	why, waits := b.in.Waiting[c.Name]
	switch now.GetState() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		// The API promises that a container is not running before its postStart hook has ended.
		if b.in.Starting[c.Name] {
			st.State.Waiting = b.waiting(c.Name, init)
			return
		}
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: stamp(now.GetStartedAt())}
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		st.State.Waiting = b.waiting(c.Name, init)
	default:
		ended := b.terminated(now)
		if !waits {
			st.State.Terminated = ended
			return
		}
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}
		st.LastTerminationState.Terminated = ended
	}
}

func (b *builder) waiting(name string, init bool) *corev1.ContainerStateWaiting {
	if why, ok := b.in.Waiting[name]; ok {
		return &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}
	}
	if len(b.in.Pod.Spec.InitContainers) > 0 && (init || !b.initialized) {
		return &corev1.ContainerStateWaiting{Reason: PodInitializing}
	}
	return &corev1.ContainerStateWaiting{Reason: ContainerCreating}
}

func (b *builder) terminated(s *runtimeapi.ContainerStatus) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: s.GetExitCode(), Reason: s.GetReason(), Message: s.GetMessage(),
		StartedAt: stamp(s.GetStartedAt()), FinishedAt: stamp(s.GetFinishedAt()),
		ContainerID: b.in.Runtime + "://" + s.GetId(),
	}
	if m := b.in.Messages[s.GetId()]; m != "" {
		t.Message = m
	}
	switch {
	case s.GetState() == runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		t.ExitCode, t.Reason = 137, "ContainerStatusUnknown"
		t.Message = "The container could not be located when the pod was terminated"
	case t.Reason == "" && t.ExitCode == 0:
		t.Reason = "Completed"
	case t.Reason == "":
		t.Reason = "Error"
	}
	// The CRI tells a signal only as a shell does.
	if sig := t.ExitCode - 128; sig > 0 && sig <= maxSignal {
		t.Signal = sig
	}
	return t
}

// RestartCount is how often the container was restarted, as it was told when it was made.
func RestartCount(s *runtimeapi.ContainerStatus) int32 {
	n, err := strconv.ParseInt(s.GetAnnotations()[RestartCountAnnotation], 10, 32)
	if err != nil {
		return int32(s.GetMetadata().GetAttempt())
	}
	return int32(n)
}

// image is the name that people know the image by; runtimes answer with its ID where it has lost its name.
func image(c *corev1.Container, s *runtimeapi.ContainerStatus) string {
	for _, name := range []string{s.GetImage().GetUserSpecifiedImage(), s.GetImage().GetImage()} {
		if name != "" && !strings.HasPrefix(name, "sha256:") {
			return name
		}
	}
	return c.Image
}

func user(s *runtimeapi.ContainerStatus) *corev1.ContainerUser {
	u := s.GetUser().GetLinux()
	if u == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID: u.GetUid(), GID: u.GetGid(), SupplementalGroups: u.GetSupplementalGroups(),
	}}
}

// stopSignal is what asks the container to end, nil where the runtime does not say.
func stopSignal(s *runtimeapi.ContainerStatus) *corev1.Signal {
	if s.GetStopSignal() == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return nil
	}
	// The API has a sign where the CRI, whose names are identifiers, has a word.
	name := strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(strings.TrimPrefix(s.GetStopSignal().String(), "SIGNAL_"))
	return new(corev1.Signal(name))
}

func volumeMounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		v := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly && m.RecursiveReadOnly != nil {
			mode := *m.RecursiveReadOnly
			if mode == corev1.RecursiveReadOnlyIfPossible {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			v.RecursiveReadOnly = &mode
		}
		out = append(out, v)
	}
	return out
}

func stamp(ns int64) metav1.Time {
	if ns == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(0, ns))
}
