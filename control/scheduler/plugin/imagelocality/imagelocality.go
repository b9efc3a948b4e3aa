// Package imagelocality favours nodes that have a pod's images.
package imagelocality

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "ImageLocality"

const key fwk.StateKey = "PreScore" + Name

// Images of less than the smallest size count nothing, those of more than the largest no more than it, a container.
const (
	smallest = 23 << 20
	largest  = 1000 << 20
)

type imageLocality struct {
	handle fwk.Handle
}

// sought is what is looked for on each node.
type sought struct {
	images     []string // as nodes name them
	containers int64
	nodes      int
}

// Clone is itself: it does not change.
func (s *sought) Clone() fwk.StateData { return s }

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	return &imageLocality{handle}, nil
}

// Name is Kubernetes' name of the plugin.
func (*imageLocality) Name() string { return Name }

// PreScore names the images as nodes do, once for all of them.
func (l *imageLocality) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	s := &sought{
		images:     append(images(pod), mounted(pod)...),
		containers: int64(len(pod.Spec.InitContainers) + len(pod.Spec.Containers)),
	}
	if s.containers == 0 || !slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return s.has(n) }) {
		return fwk.NewStatus(fwk.Skip) // none has any: all would score nothing
	}
	all, err := l.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(err)
	}
	s.nodes = len(all)
	state.Write(key, s)
	return nil
}

func (s *sought) has(info fwk.NodeInfo) bool {
	states := info.GetImageStates()
	if len(states) == 0 {
		return false
	}
	return slices.ContainsFunc(s.images, func(image string) bool { return states[image] != nil })
}

// Score counts the bytes that need no download, less for images that few nodes have: they would draw all pods.
func (*imageLocality) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := plugin.Read[*sought](state, key)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return s.score(info.GetImageStates()), nil
}

func (s *sought) score(states map[string]*fwk.ImageStateSummary) int64 {
	sum := int64(0)
	for _, image := range s.images {
		if i := states[image]; i != nil && s.nodes > 0 {
			sum += int64(float64(i.Size) * float64(i.NumNodes) / float64(s.nodes))
		}
	}
	top := largest * s.containers
	return fwk.MaxScore * (min(max(sum, smallest), top) - smallest) / (top - smallest)
}

// ScoreExtensions are none: the scale is absolute.
func (*imageLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod says what of a pod counts here: an image of two containers counts twice.
func (*imageLocality) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	of, mounted := images(pod), mounted(pod)
	slices.Sort(of)
	slices.Sort(mounted)
	return []fwk.SignFragment{
		{Key: fwk.ImageNamesSignerName, Value: of},
		{Key: "v1.Pod.Spec.Volumes.Images()", Value: mounted},
	}, nil
}

// mounted are the images that are volumes.
func mounted(pod *corev1.Pod) []string {
	var all []string
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil && v.Reference != "" {
			all = append(all, named(v.Reference))
		}
	}
	return all
}

func images(pod *corev1.Pod) []string {
	all := make([]string, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		all = append(all, named(pod.Spec.InitContainers[i].Image))
	}
	for i := range pod.Spec.Containers {
		all = append(all, named(pod.Spec.Containers[i].Image))
	}
	return all
}

// named gives an image the tag that is meant when there is none. A colon before the last slash is a registry's port.
func named(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}
