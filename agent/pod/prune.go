package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/eviction/collect"
	"github.com/berth-node/berth/internal/turns"
)

// Pruner finds and removes by hand what is left of containers and pods. It removes nothing itself: workers do, of what
// is theirs. Its methods can be called at any time.
type Pruner struct {
	registry *registry
	runtime  Runtime
	dead     *dead
	gone     func(context.Context) ([]Gone, error)
	logDir   string
	found    chan<- []*corev1.Pod // pods without a worker, for one to end them
}

// NewPruner returns that of a Manager's pods.
func NewPruner(m *Manager) *Pruner {
	n := m.node
	return &Pruner{registry: n.registry, runtime: n.cfg.Runtime, dead: n.dead, gone: n.gone, logDir: n.cfg.LogDir, found: m.orphans.found}
}

// Dead are the containers that are kept for their logs alone.
func (p *Pruner) Dead() []collect.Container { return p.dead.list() }

// RemoveDead removes dead containers, and waits until they are gone. It returns those that are; where a pod is just
// being started, its own go when that is done.
func (p *Pruner) RemoveDead(ctx context.Context, list []collect.Container) (gone []collect.Container) {
	p.dead.order(list)
	for _, c := range list {
		if w, ok := p.registry.get(c.Pod); ok {
			w.mail.ring()
		}
	}
	p.dead.await(ctx, func() bool {
		there := map[string]bool{}
		for _, c := range p.dead.list() {
			there[c.ID] = true
		}
		gone = slices.DeleteFunc(slices.Clone(list), func(c collect.Container) bool { return there[c.ID] })
		return len(gone) == len(list)
	})
	return gone
}

// DeadContainer is a dead container, with what it has on the disks.
type DeadContainer struct {
	collect.Container
	Layer, Logs       Space
	LayerDir, LogsDir string // on the file systems that these are on; "": it has none
}

// How many dead containers are weighed at once, and for how long each at first: one that has more files than can be
// counted keeps none of the others.
const (
	weighAtOnce = 4
	weighFirst  = 250 * time.Millisecond
)

// WeighDead are the containers that are kept for their logs alone, with what each has, the oldest first. It is what
// could be counted until the deadline.
func (p *Pruner) WeighDead(ctx context.Context) ([]DeadContainer, error) {
	list := p.dead.list()
	slices.SortFunc(list, func(x, y collect.Container) int {
		return cmp.Or(x.Ended.Compare(y.Ended), cmp.Compare(x.ID, y.ID))
	})
	out := make([]DeadContainer, len(list))
	for i, c := range list {
		out[i].Container = c
		if w, ok := p.registry.get(c.Pod); ok {
			out[i].LogsDir = spec.LogDirectory(p.logDir, w.share.Pod)
			out[i].Logs = p.logs(w.share.Pod, c)
		}
	}
	share := turns.Config{AtOnce: weighAtOnce, First: weighFirst}
	turns.Do(ctx, len(list), share, func(ctx context.Context, i int) bool {
		// A list has those that run only, and of one that has ended not every runtime says what it has.
		r, err := p.runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: list[i].ID})
		layer, one := r.GetStats().GetWritableLayer(), &out[i]
		ended := ctx.Err() == nil
		has := Space{int64(layer.GetUsedBytes().GetValue()), int64(layer.GetInodesUsed().GetValue())}
		if err == nil && (ended || has.Inodes >= one.Layer.Inodes) {
			one.Layer, one.LayerDir = has, layer.GetFsId().GetMountpoint()
		}
		return ended
	})
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("weigh dead containers: %w", err)
	}
	return out, nil
}

// logs is what the logs of a container take.
func (p *Pruner) logs(pod *corev1.Pod, c collect.Container) (out Space) {
	files, err := logsOf(p.logDir, pod, c.Name, c.Attempt)
	if err != nil {
		return Space{}
	}
	for _, path := range files {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			out.add(Space{st.Blocks * blockSize, 1})
		}
	}
	return out
}

// blockSize is that of stat(2), whatever the file system's.
const blockSize = 512

// logsOf are a container's log and those that it was rotated to.
func logsOf(logDir string, pod *corev1.Pod, container string, attempt uint32) ([]string, error) {
	return filepath.Glob(filepath.Join(spec.LogDirectory(logDir, pod), spec.LogPath(container, attempt)) + "*")
}

// Gone finds the directories of pods that have no worker. It knows nothing before all manifests have been read.
func (p *Pruner) Gone(ctx context.Context) ([]Gone, error) { return p.gone(ctx) }

// RemoveGone has workers remove all that is left of those pods, as of any pod that ends: one that comes back meanwhile
// waits for it. It returns when they are gone, or ctx ends, with those that are.
func (p *Pruner) RemoveGone(ctx context.Context, list []Gone) (removed []Gone) {
	pods := map[types.UID]*corev1.Pod{}
	for _, g := range list {
		pods[g.UID] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: g.UID}}
	}
	var found []*corev1.Pod
	for _, pod := range pods {
		found = append(found, pod)
	}
	select {
	case <-ctx.Done():
		return nil
	case p.found <- found:
	}
	p.dead.await(ctx, func() bool {
		removed = slices.DeleteFunc(slices.Clone(list), func(g Gone) bool {
			_, err := os.Lstat(g.Path)
			return !errors.Is(err, fs.ErrNotExist)
		})
		return len(removed) == len(list)
	})
	return removed
}
