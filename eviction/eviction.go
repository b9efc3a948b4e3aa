// Package eviction ends pods that take more of the node than they may: those that have more on its disk than their
// limits of ephemeral-storage and the size limits of their emptyDirs allow. What is in memory is limited by the kernel.
package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// every is how often pods with a limit are looked at, as by kubelet. The kernel tells nobody that a directory has
// grown.
const every = 10 * time.Second

// Pods are the pods of the node.
type Pods interface {
	// Here are all that have anything on the node.
	Here() []*corev1.Pod
	// Evict ends a pod for what it takes. The message is for people.
	Evict(pod *corev1.Pod, message string)
}

// Usage says what pods have on the disk, in bytes.
type Usage interface {
	// Volume is what an emptyDir of the pod takes; false when it cannot be counted.
	Volume(ctx context.Context, pod *corev1.Pod, name string) (bytes int64, ok bool)
	// Containers is what each of the pod's containers has written into its file system and its logs, by name. layers
	// are the directories of file systems that they have written to.
	Containers(ctx context.Context, pod *corev1.Pod) (use map[string]int64, layers []string, err error)
}

// Limits ends pods that have more on the node's disk than they may. One goroutine has all of it.
type Limits struct {
	pods  Pods
	usage Usage
	log   *slog.Logger
	free  map[string]unix.Statfs_t // at the last look, by directory: of what pods write to
	over  map[types.UID]bool       // pods that were told to end
}

// NewLimits returns Limits of pods that write below these directories.
func NewLimits(pods Pods, usage Usage, directories []string, log *slog.Logger) *Limits {
	l := &Limits{pods: pods, usage: usage, log: log, free: map[string]unix.Statfs_t{}, over: map[types.UID]bool{}}
	for _, dir := range directories {
		l.free[dir] = unix.Statfs_t{}
	}
	return l
}

// Run looks until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.look(ctx)
		}
	}
}

// look counts only when something was written to a file system of pods at all since the last time.
func (l *Limits) look(ctx context.Context) {
	var limited []*corev1.Pod
	here := map[types.UID]bool{}
	for _, pod := range l.pods.Here() {
		here[pod.UID] = true
		if !l.over[pod.UID] && (len(limitedVolumes(pod)) > 0 || limitsStorage(pod)) {
			limited = append(limited, pod)
		}
	}
	for uid := range l.over {
		if !here[uid] {
			delete(l.over, uid)
		}
	}
	if len(limited) == 0 || !l.written() {
		return
	}
	for _, pod := range limited {
		if message := l.exceeded(ctx, pod); message != "" {
			l.over[pod.UID] = true
			l.pods.Evict(pod, message)
		}
	}
}

// written says whether there is more or less free than at the last look, anywhere that pods write to.
func (l *Limits) written() bool {
	changed := false
	for dir, before := range l.free {
		var now unix.Statfs_t
		if unix.Statfs(dir, &now) != nil {
			continue // nothing was written there yet
		}
		changed = changed || now.Bfree != before.Bfree || now.Ffree != before.Ffree
		l.free[dir] = now
	}
	return changed
}

// exceeded says which limit a pod is above, in the words that people know from kubelet; "" when it is above none.
func (l *Limits) exceeded(ctx context.Context, pod *corev1.Pod) string {
	for _, v := range limitedVolumes(pod) {
		used, ok := l.usage.Volume(ctx, pod, v.Name)
		if limit := v.EmptyDir.SizeLimit; ok && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	if !limitsStorage(pod) {
		return ""
	}
	use, err := l.storage(ctx, pod)
	if err != nil {
		l.log.Warn("what the pod has on the disk is not compared with its limit",
			"pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "error", err)
		return ""
	}
	return use.exceeded(pod)
}

// storage counts what a pod has.
func (l *Limits) storage(ctx context.Context, pod *corev1.Pod) (storage, error) {
	containers, layers, err := l.usage.Containers(ctx, pod)
	if err != nil {
		return storage{}, err
	}
	for _, dir := range layers {
		if _, ok := l.free[dir]; !ok {
			l.free[dir] = unix.Statfs_t{} // it is looked at from now on
		}
	}
	out := storage{containers: containers}
	for _, v := range diskVolumes(pod) {
		if used, ok := l.usage.Volume(ctx, pod, v.Name); ok {
			out.volumes += used
		}
	}
	return out, nil
}
