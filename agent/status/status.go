// Package status says what a pod is doing, in the words of the API. [Build] is pure: it derives the whole status from
// what the pod should be and what the runtime says. The [Writer] is the one place that holds what was last said.
package status

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups/kube"
)

// The reasons of a container that has not begun, and that nothing is wrong with.
const (
	ContainerCreating = "ContainerCreating"
	PodInitializing   = "PodInitializing"
)

// Waiting says why something that should run does not.
type Waiting struct{ Reason, Message string }

// Probes is what the probes of a running container have found. A probe that the container does not have counts as
// passed.
type Probes struct {
	StartupOK   bool
	ReadinessOK bool
}

// Input is all that a status depends on.
type Input struct {
	Pod     *corev1.Pod
	Old     *corev1.PodStatus // what was said last; nil: nothing. Times of transitions are kept from it
	Now     time.Time
	Runtime string // the runtime's name, the scheme of container IDs
	HostIPs []string

	Sandbox    *runtimeapi.PodSandboxStatus  // the newest one; nil: none
	Containers []*runtimeapi.ContainerStatus // all the pod has, dead ones too, in any order
	Messages   map[string]string             // termination messages by container ID
	Waiting    map[string]Waiting            // by container name: those that will be started, but not now
	Starting   map[string]bool               // by container name: those whose postStart hook has not ended
	Probes     map[string]Probes             // by container name

	// Resources are what containers that run have, by name; others have what their specification says.
	Resources    map[string]corev1.ResourceRequirements
	PodResources *corev1.ResourceRequirements // what the pod as a whole has, if its specification says anything of that

	Devices map[string][]corev1.ResourceStatus // of containers that have some, by name
	Claims  []corev1.PodResourceClaimStatus    // that templates have made

	Ended bool // nothing of the pod runs or will run again
	Shed  bool // its containers are removed when they have ended

	Reason, Message string                // about the pod as a whole
	Failed          bool                  // the node has failed the pod, whatever its containers exit with
	Conditions      []corev1.PodCondition // further ones
}

// Build derives the status.
func Build(in Input) corev1.PodStatus {
	old := in.Old
	if old == nil {
		old = &corev1.PodStatus{}
	}
	spec := &in.Pod.Spec
	by := byName(in.Containers)
	st := corev1.PodStatus{
		Reason: in.Reason, Message: in.Message,
		QOSClass: kube.QoS(in.Pod), StartTime: old.StartTime,
		ObservedGeneration: in.Pod.Generation, ResourceClaimStatuses: in.Claims,
	}
	if st.StartTime == nil {
		st.StartTime = new(metav1.NewTime(began(in)))
	}
	if spec.Resources != nil {
		st.AllocatedResources, st.Resources = spec.Resources.Requests.DeepCopy(), in.PodResources.DeepCopy()
	}
	addresses(&st, in)
	b := builder{in: in, by: by}
	b.initialized = b.isInitialized()
	for i := range spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, b.container(&spec.InitContainers[i], true))
	}
	for i := range spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, b.container(&spec.Containers[i], false))
	}
	for i := range spec.EphemeralContainers {
		st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, b.ephemeral(&spec.EphemeralContainers[i]))
	}
	st.Phase = phase(in, &st)
	st.Conditions = conditions(in, &st, old.Conditions)
	return st
}

// began is when the node first did something for the pod, as far as can be told: an agent that was restarted still
// finds the times of the sandbox and the containers.
func began(in Input) time.Time {
	t := in.Now
	earlier := func(ns int64) {
		if c := time.Unix(0, ns); ns > 0 && c.Before(t) {
			t = c
		}
	}
	earlier(in.Sandbox.GetCreatedAt())
	for _, c := range in.Containers {
		earlier(c.GetCreatedAt())
	}
	return t.Truncate(time.Second)
}

func addresses(st *corev1.PodStatus, in Input) {
	for _, ip := range in.HostIPs {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(in.HostIPs) > 0 {
		st.HostIP = in.HostIPs[0]
	}
	for _, ip := range PodIPs(in.Pod, in.Sandbox, in.HostIPs) {
		st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

// PodIPs are the addresses of a pod with that sandbox, the main one first.
func PodIPs(pod *corev1.Pod, sandbox *runtimeapi.PodSandboxStatus, hostIPs []string) []string {
	if sandbox == nil {
		return nil
	}
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	var out []string
	if ip := sandbox.GetNetwork().GetIp(); ip != "" {
		out = append(out, ip)
	}
	for _, more := range sandbox.GetNetwork().GetAdditionalIps() {
		out = append(out, more.GetIp())
	}
	return out
}

// Newer orders containers of one name, the newest first.
func Newer(a, b *runtimeapi.ContainerStatus) int {
	switch {
	case a.GetCreatedAt() != b.GetCreatedAt():
		if a.GetCreatedAt() > b.GetCreatedAt() {
			return -1
		}
		return 1
	case a.GetMetadata().GetAttempt() != b.GetMetadata().GetAttempt():
		return int(b.GetMetadata().GetAttempt()) - int(a.GetMetadata().GetAttempt())
	}
	return strings.Compare(a.GetId(), b.GetId())
}

// byName groups containers by their names, the newest of each first.
func byName(all []*runtimeapi.ContainerStatus) map[string][]*runtimeapi.ContainerStatus {
	out := map[string][]*runtimeapi.ContainerStatus{}
	for _, c := range all {
		name := c.GetMetadata().GetName()
		out[name] = append(out[name], c)
	}
	for _, list := range out {
		slices.SortFunc(list, Newer)
	}
	return out
}

// IsSidecar says whether an init container goes on beside the pod's containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
