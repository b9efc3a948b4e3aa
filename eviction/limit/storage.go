package limit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/internal/turns"
)

// Excess is a limit that a pod is above.
type Excess struct {
	UID             types.UID
	Namespace, Name string
	Signal          signal.Signal // one of [signal.Limits]
	Of              string        // what is limited, for people
	Used, Limit     int64         // bytes
	Message         string        // in the words that people know from kubelet
	Time            time.Time     // when it began to be counted
}

// level is one limit of a pod, with what the pod has of it.
type level struct {
	of          signal.Signal
	what        string
	used, limit int64
	message     string
}

func (l *level) left() int64 { return l.limit - l.used }

// storage is what a pod has on the node's disk, in bytes.
type storage struct {
	volumes    map[string]int64 // emptyDirs
	containers map[string]int64 // what each has written into its file system, and its logs, and what is [Shared]
	layers     []string         // file systems that containers have written to
	part       bool             // there was no time for all of it
}

// levels are all limits of a pod of which it is known what it has, in the order in which kubelet looks at them.
func (u storage) levels(pod *corev1.Pod) (out []level) {
	for _, v := range limitedVolumes(pod) {
		if used, ok := u.volumes[v.Name]; ok {
			limit := v.EmptyDir.SizeLimit
			out = append(out, level{
				signal.EmptyDirLimit, fmt.Sprintf("emptyDir %q", v.Name), used, limit.Value(),
				fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String()),
			})
		}
	}
	if u.containers == nil {
		return out
	}
	sum := int64(0)
	for _, used := range u.volumes {
		sum += used
	}
	for _, used := range u.containers {
		sum += used
	}
	if limit, ok := podLimits(pod)[corev1.ResourceEphemeralStorage]; ok && limit.Sign() > 0 {
		out = append(out, level{
			signal.PodLimit, "the pod", sum, limit.Value(),
			fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String()),
		})
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); limit.Sign() > 0 {
			out = append(out, level{
				signal.ContainerLimit, fmt.Sprintf("container %q", c.Name), u.containers[c.Name], limit.Value(),
				fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String()),
			})
		}
	}
	return out
}

// podLimits are what the containers of a pod may have together, where one of them has a limit. One without a limit
// counts for the others, as under kubelet.
func podLimits(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
}

func limitsStorage(pod *corev1.Pod) bool {
	limit, ok := podLimits(pod)[corev1.ResourceEphemeralStorage]
	return ok && limit.Sign() > 0
}

// limited says whether there is anything to count for.
func limited(pod *corev1.Pod) bool { return len(limitedVolumes(pod)) > 0 || limitsStorage(pod) }

// measure counts what the limits of a pod are for, each volume once. What cannot be counted is left out. None takes the
// time of the others.
func measure(ctx context.Context, usage Usage, pod *corev1.Pod) (out storage, err error) {
	out.volumes = map[string]int64{}
	volumes := limitedVolumes(pod)
	parts := 0
	if limitsStorage(pod) {
		volumes, parts = diskVolumes(pod), 1
	}
	enough := turns.Among(ctx, len(volumes)+parts, func(ctx context.Context, i int) {
		if i < len(volumes) {
			if used, ok := usage.Volume(ctx, pod, volumes[i].Name); ok {
				out.volumes[volumes[i].Name] = used
			}
			return
		}
		var containers map[string]int64
		if containers, out.layers, err = usage.Containers(ctx, pod); err == nil {
			out.containers = map[string]int64{}
			maps.Copy(out.containers, containers)
		}
	})
	out.part = !enough
	return out, cmp.Or(err, ctx.Err())
}

// limitedVolumes are the emptyDirs on the disk that have a limit.
func limitedVolumes(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for _, v := range diskVolumes(pod) {
		if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Sign() > 0 {
			out = append(out, v)
		}
	}
	return out
}

// diskVolumes are the emptyDirs on the disk.
func diskVolumes(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault {
			out = append(out, v)
		}
	}
	return out
}
