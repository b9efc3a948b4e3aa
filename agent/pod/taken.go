package pod

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/internal/turns"
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
	// AtLeast says that there was no time to count everything: it has that much, and may have more.
	AtLeast bool
}

// How long the files of pods may be counted for a choice of who goes, and how: several pods at once, each for a moment
// first. Whoever makes so many files that they cannot be counted in time, and however many do, must not keep the others
// from being counted, nor himself from being chosen. Of the time that a context has, a third is left for the choice.
const (
	takenPatience = 20 * time.Second
	takenAtOnce   = 16
	takenFirst    = 250 * time.Millisecond
)

// unanswered is how long a runtime has to be asked for what a pod has until it counts that it does not say: before that
// the time was too short.
const unanswered = time.Second

// Taken counts what pods have on the disks now. Those of which the runtime does not say it are not in the answer; of
// those that cannot be counted to their end in time it has what was.
func (e *Evictor) Taken(ctx context.Context, pods []*corev1.Pod) (map[types.UID]Taken, error) {
	most := takenPatience
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)*2/3)
	}
	counting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	going, fail := context.WithCancelCause(counting)
	defer fail(nil)
	all := make([]counted, len(pods))
	share := turns.Config{AtOnce: takenAtOnce, First: takenFirst}
	turns.Do(going, len(pods), share, func(ctx context.Context, i int) bool {
		now := e.taken(ctx, pods[i])
		if now.failed != nil {
			fail(now.failed)
		}
		return all[i].take(now)
	})
	if err := context.Cause(going); err != nil && counting.Err() == nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("count files of pods: %w", err)
	}
	out := map[types.UID]Taken{}
	for i, p := range pods {
		if all[i].asked < unanswered {
			out[p.UID] = all[i].known()
		}
	}
	return out, nil
}

// counted is what is known of a pod.
type counted struct {
	taken  Taken
	begun  bool          // it has had a turn
	asked  time.Duration // for how long the runtime was asked that has not answered
	failed error         // why the runtime does not say what the pod has, if not for want of time
}

// take takes note of another turn, and says whether nothing is left to be counted.
func (t *counted) take(now counted) (ended bool) {
	if now.taken.AtLeast && t.begun {
		now.taken.raise(&t.taken)
		if t.asked == 0 {
			now.asked = 0
		}
	}
	*t = now
	return !now.taken.AtLeast
}

// known is nothing, at least, of a pod for which there was no time at all.
func (t *counted) known() Taken {
	if !t.begun {
		return Taken{AtLeast: true}
	}
	return t.taken
}

// raise has a count that came to no end say no less than one before it: it may have had less time.
func (t *Taken) raise(before *Taken) {
	for _, of := range []struct{ now, before map[string]Space }{
		{t.Layers, before.Layers}, {t.Logs, before.Logs}, {t.Volumes, before.Volumes},
	} {
		for name, s := range of.before {
			now := of.now[name]
			of.now[name] = Space{max(now.Bytes, s.Bytes), max(now.Inodes, s.Inodes)}
		}
	}
	t.Apart = t.Apart || before.Apart
}

// taken counts what a pod has. What the runtime says is one part of it, and each directory is one: none takes the time
// of the others.
func (e *Evictor) taken(ctx context.Context, pod *corev1.Pod) counted {
	now := counted{begun: true}
	t := &now.taken
	t.Logs, t.Volumes = map[string]Space{}, map[string]Space{}
	parts := []func(context.Context){func(ctx context.Context) {
		began := time.Now()
		now.asked, t.Layers = 0, map[string]Space{} // it may be asked again
		switch err := e.layers(ctx, pod, t); {
		case err != nil && ctx.Err() != nil:
			now.asked = max(time.Since(began), 1)
		case err != nil:
			now.failed = err
		}
	}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			parts = append(parts, func(ctx context.Context) { t.Logs[list[i].Name] = e.beside(ctx, pod, list[i].Name) })
		}
	}
	t.Shared = shared(e.node.cfg.RootDir, pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if dir := v.EmptyDir; dir == nil || dir.Medium != corev1.StorageMediumDefault {
			continue
		}
		parts = append(parts, func(ctx context.Context) {
			t.Volumes[v.Name], _ = e.emptyDir(ctx, pod, v.Name) // what cannot be counted of it is nothing
		})
	}
	t.AtLeast = !turns.Among(ctx, len(parts), func(ctx context.Context, i int) { parts[i](ctx) })
	return now
}

// layers has the runtime say what a pod's containers have written into their file systems.
func (e *Evictor) layers(ctx context.Context, pod *corev1.Pod, into *Taken) error {
	cfg := &e.node.cfg
	r, err := cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{spec.PodUIDLabel: string(pod.UID)}},
	})
	if err != nil {
		return fmt.Errorf("list stats of containers: %w", err)
	}
	for _, s := range r.GetStats() {
		if s.GetAttributes().GetLabels()[spec.PodUIDLabel] != string(pod.UID) {
			continue // of a runtime that does not filter
		}
		name, layer := s.GetAttributes().GetMetadata().GetName(), s.GetWritableLayer()
		sum := into.Layers[name]
		sum.add(Space{int64(layer.GetUsedBytes().GetValue()), int64(layer.GetInodesUsed().GetValue())})
		into.Layers[name] = sum
		if dir := layer.GetFsId().GetMountpoint(); dir != "" {
			into.Apart = into.Apart || apart(dir, cfg.RootDir)
		}
	}
	return nil
}

// apart says whether two directories are on different file systems.
func apart(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev != y.Dev
}
