package agent

import (
	"context"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pulled"
	"github.com/berth-node/berth/eviction/collect/images"
)

// openImages opens what removes images that no pod needs.
func openImages(c *Config, pods *pod.Manager, pulled *pulled.Records, events *event.Recorder) *images.Collector {
	return images.New(images.Config{
		Policy: c.ImageGC.Policy, Period: c.ImageGC.Period, Runtime: c.Runtime, Events: events,
		Wanted: func() []string { return wantedImages(pods) }, Left: pulled.Prune,
		Parts: c.ImageParts, Came: c.ImagesCame, Content: c.CollectImages, Log: c.Log,
	})
}

// knownPods are those of a [pod.Manager].
type knownPods interface {
	List() []*corev1.Pod   // that have a status, also those that wait to be taken in
	Active() []*corev1.Pod // that were taken in, also those that have none yet
}

// wantedImages are those of pods that have not come to their end: a container may be about to be made of one.
func wantedImages(pods knownPods) []string {
	var out []string
	for _, p := range slices.Concat(pods.List(), pods.Active()) {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				out = append(out, list[i].Image)
			}
		}
		for i := range p.Spec.EphemeralContainers {
			out = append(out, p.Spec.EphemeralContainers[i].Image)
		}
		for i := range p.Spec.Volumes {
			if v := p.Spec.Volumes[i].Image; v != nil {
				out = append(out, v.Reference)
			}
		}
	}
	return out
}

// pulledDir is where it is remembered in the root directory who has pulled which image, by the name that kubelet has
// for it.
const pulledDir = "image_manager"

// openPulled opens what is known of images that were pulled.
func openPulled(c *Config) (*pulled.Records, error) {
	policy, err := c.Verification()
	if err != nil {
		return nil, err
	}
	return pulled.Open(pulled.Config{
		Dir: filepath.Join(c.RootDir, pulledDir), Policy: policy, Log: c.Log,
		Find: func(ctx context.Context, i pulled.Image) (string, []string, error) {
			spec := &runtimeapi.ImageSpec{Image: i.Ref, UserSpecifiedImage: i.Ref, RuntimeHandler: i.Handler}
			r, err := c.Runtime.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
			return r.GetImage().GetId(), slices.Concat(r.GetImage().GetRepoTags(), r.GetImage().GetRepoDigests()), err
		},
	})
}
