// Package spec turns a pod into the CRI's messages. It is pure: what it needs to know of the node, the image and the
// volumes is gathered by its caller and handed in.
package spec

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/status"
)

// The labels by which a sandbox or container is found again. They are kubelet's, because people and tools know them.
const (
	PodNameLabel       = "io.kubernetes.pod.name"
	PodNamespaceLabel  = "io.kubernetes.pod.namespace"
	PodUIDLabel        = "io.kubernetes.pod.uid"
	ContainerNameLabel = "io.kubernetes.container.name"
)

// The annotations of a container: what has to be known of it when nothing else is, after a restart or when its pod is
// not wanted any more.
const (
	hashAnnotation          = "io.kubernetes.container.hash"
	messagePathAnnotation   = "io.kubernetes.container.terminationMessagePath"
	messagePolicyAnnotation = "io.kubernetes.container.terminationMessagePolicy"
	graceAnnotation         = "io.kubernetes.pod.terminationGracePeriod"
	preStopAnnotation       = "io.kubernetes.container.preStopHandler"
	portsAnnotation         = "io.kubernetes.container.ports"

	sidecarAnnotation = "berth.node/sidecar" // its place in the order of start
	backoffAnnotation = "berth.node/restart-backoff"
	roundAnnotation   = "berth.node/round" // how often all containers of its pod had been sent back; not there: never

	resourcesAnnotation = "berth.node/resources" // what it was made with
)

// OwnerAnnotation of a sandbox or container has the root directory of the agent that has made it: a runtime may have
// pods of others.
const OwnerAnnotation = "berth.node/root-dir"

// PodName is how messages name a pod.
func PodName(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// LogDirectory is the directory of a pod's logs.
func LogDirectory(logDir string, pod *corev1.Pod) string {
	return filepath.Join(logDir, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// LogPath is a container's log below the pod's directory.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

func podLabels(pod *corev1.Pod) map[string]string {
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[PodNameLabel], labels[PodNamespaceLabel], labels[PodUIDLabel] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		PodNameLabel: pod.Name, PodNamespaceLabel: pod.Namespace, PodUIDLabel: string(pod.UID), ContainerNameLabel: c.Name,
	}
}

func containerAnnotations(in *Input) (map[string]string, error) {
	c := in.Container
	a := map[string]string{
		hashAnnotation:                Hash(c),
		status.RestartCountAnnotation: strconv.FormatUint(uint64(in.Attempt), 10),
		messagePathAnnotation:         c.TerminationMessagePath,
		messagePolicyAnnotation:       string(c.TerminationMessagePolicy),
		backoffAnnotation:             in.Backoff.String(),
		OwnerAnnotation:               in.Node.RootDir,
	}
	if g := in.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[graceAnnotation] = strconv.FormatInt(*g, 10)
	}
	for i := range in.Pod.Spec.InitContainers {
		if ic := &in.Pod.Spec.InitContainers[i]; ic.Name == c.Name && status.IsSidecar(ic) {
			a[sidecarAnnotation] = strconv.Itoa(i)
		}
	}
	if in.Round > 0 {
		a[roundAnnotation] = strconv.FormatUint(uint64(in.Round), 10)
	}
	res, err := json.Marshal(c.Resources)
	if err != nil {
		return nil, fmt.Errorf("keep resources: %w", err)
	}
	a[resourcesAnnotation] = string(res)
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return a, nil
	}
	for name, v := range map[string]any{preStopAnnotation: c.Lifecycle.PreStop, portsAnnotation: c.Ports} {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("keep preStop hook: %w", err)
		}
		a[name] = string(data)
	}
	return a, nil
}

// Hash is what of a container can change under a running pod, and then means a new container. Only few fields are part
// of it, so that an agent which knows more fields than the last one comes to the same result.
func Hash(c *corev1.Container) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%q %q", c.Name, c.Image)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// Changed says whether a container was made from something else than c.
func Changed(c *corev1.Container, annotations map[string]string) bool {
	had := annotations[hashAnnotation]
	return had != "" && had != Hash(c)
}

// Round is how often all containers of the pod had been sent back to the start when this one's start was planned.
func Round(annotations map[string]string) uint32 {
	n, err := strconv.ParseUint(annotations[roundAnnotation], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// Backoff is the delay that applies when this container exits soon.
func Backoff(annotations map[string]string) time.Duration {
	d, err := time.ParseDuration(annotations[backoffAnnotation])
	if err != nil || d < 0 {
		return 0
	}
	return d
}

// MadeWith is what a container was made with; false when it does not say.
func MadeWith(annotations map[string]string) (corev1.ResourceRequirements, bool) {
	var out corev1.ResourceRequirements
	text, ok := annotations[resourcesAnnotation]
	return out, ok && json.Unmarshal([]byte(text), &out) == nil
}

// MessagePath is where a container leaves its last words, and whether its log may stand in for them.
func MessagePath(annotations map[string]string) (path string, orLogs bool) {
	return annotations[messagePathAnnotation], annotations[messagePolicyAnnotation] == string(corev1.TerminationMessageFallbackToLogsOnError)
}

// Attempt is the one that a container of the name should have next, after those there are.
func Attempt(containers []*runtimeapi.ContainerStatus, name string) uint32 {
	next := uint32(0)
	for _, c := range containers {
		if c.GetMetadata().GetName() == name {
			next = max(next, c.GetMetadata().GetAttempt()+1, uint32(status.RestartCount(c))+1)
		}
	}
	return next
}
