package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/imagegc"
)

// imageCollector removes images that no pod needs.
func (a *Agent) imageCollector() *imagegc.Collector {
	return imagegc.New(imagegc.Config{
		Policy: a.cfg.ImageGC.Policy, Period: a.cfg.ImageGC.Period, Runtime: a.cfg.Runtime, Events: a.events,
		Wanted: func() []string { return wantedImages(a.pods.List()) }, Log: a.log,
	})
}

// collectImages runs it once it is known which pods there are: before, their images would be nobody's.
func (a *Agent) collectImages(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-a.read:
		a.images.Run(ctx)
	}
}

// wantedImages are those of pods that have not come to their end: a container may be about to be made of one.
func wantedImages(pods []*corev1.Pod) []string {
	var out []string
	for _, p := range pods {
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
