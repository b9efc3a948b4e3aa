package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// Space is what files take.
type Space struct{ Bytes, Inodes int64 }

func (s *Space) add(more Space) {
	s.Bytes += more.Bytes
	s.Inodes += more.Inodes
}

// Taken is what a pod has on the node's disks.
type Taken struct {
	Layers map[string]Space // what containers have written into their file systems, by name
	Logs   map[string]Space // of containers, by name, with their termination messages
	Shared Space            // the file that all of them have as /etc/hosts
	// Volumes are the emptyDirs on the disk.
	Volumes map[string]Space
	// Apart says that the layers are on another file system than the rest.
	Apart bool
}

// How long the files of pods may be counted for a choice of who goes, and how many pods are counted at once. Somebody
// who makes so many files that they cannot be counted in time must not keep the others from being counted, nor himself
// from being chosen.
const (
	takenPatience = 20 * time.Second
	takenAtOnce   = 16
)

// Taken counts what pods have on the disks now. Those that cannot be counted are not in the answer; of those that
// cannot be counted to their end in time it has what was.
func (e *Evictor) Taken(ctx context.Context, pods []*corev1.Pod) (map[types.UID]Taken, error) {
	counting, cancel := context.WithTimeout(ctx, takenPatience)
	defer cancel()
	out := map[types.UID]Taken{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(takenAtOnce)
	for _, p := range pods {
		group.Go(func() error {
			if counting.Err() != nil {
				return nil // there was no time for it
			}
			r, err := e.node.cfg.Runtime.ListContainerStats(counting, &runtimeapi.ListContainerStatsRequest{
				Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{spec.PodUIDLabel: string(p.UID)}},
			})
			switch {
			case err != nil && counting.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("list stats of containers: %w", err)
			}
			t := e.taken(counting, p, r.GetStats())
			mu.Lock()
			defer mu.Unlock()
			out[p.UID] = t
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("count files of pods: %w", err)
	}
	return out, nil
}

func (e *Evictor) taken(ctx context.Context, pod *corev1.Pod, stats []*runtimeapi.ContainerStats) Taken {
	t := Taken{Layers: map[string]Space{}, Logs: map[string]Space{}, Volumes: map[string]Space{}}
	cfg := &e.node.cfg
	for _, s := range stats {
		if s.GetAttributes().GetLabels()[spec.PodUIDLabel] != string(pod.UID) {
			continue // of a runtime that does not filter
		}
		name, layer := s.GetAttributes().GetMetadata().GetName(), s.GetWritableLayer()
		sum := t.Layers[name]
		sum.add(Space{int64(layer.GetUsedBytes().GetValue()), int64(layer.GetInodesUsed().GetValue())})
		t.Layers[name] = sum
		if dir := layer.GetFsId().GetMountpoint(); dir != "" {
			t.Apart = t.Apart || apart(dir, cfg.RootDir)
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			t.Logs[list[i].Name] = e.beside(ctx, pod, list[i].Name)
		}
	}
	t.Shared = shared(cfg.RootDir, pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if dir := v.EmptyDir; dir == nil || dir.Medium != corev1.StorageMediumDefault {
			continue
		}
		t.Volumes[v.Name], _ = e.emptyDir(ctx, pod, v.Name) // what cannot be counted of it is nothing
	}
	return t
}

// apart says whether two directories are on different file systems.
func apart(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev != y.Dev
}
