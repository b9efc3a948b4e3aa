package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume"
)

// limitsEvery is how often volumes with a limit are looked at, as by kubelet. The kernel tells nobody that a directory has grown.
const limitsEvery = 10 * time.Second

// evictedGrace is what a pod has that is evicted for what it takes, as under kubelet.
const evictedGrace = 1

// limits ends pods that have more on the node's disk than they may. What is in memory is limited by the kernel.
type limits struct {
	*Manager
	free map[string]unix.Statfs_t // at the last look, by directory: of what pods write to
	over map[types.UID]bool       // pods that were told to end
}

func (m *Manager) watchLimits(ctx context.Context) {
	if m.cfg.DiskUse == nil {
		return
	}
	l := limits{Manager: m, free: map[string]unix.Statfs_t{filepath.Join(m.cfg.RootDir, "pods"): {}, m.cfg.LogDir: {}}, over: map[types.UID]bool{}}
	tick := time.NewTicker(limitsEvery)
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
func (l *limits) look(ctx context.Context) {
	var limited []*worker
	here := map[types.UID]bool{}
	l.workers.Range(func(uid, w any) bool {
		one := w.(*worker) //nolint:forcetypeassert // nothing else is in there
		here[one.uid] = true
		if !l.over[one.uid] && (len(limitedVolumes(one.share.Pod)) > 0 || limitsStorage(one.share.Pod)) {
			limited = append(limited, one)
		}
		return true
	})
	for uid := range l.over {
		if !here[uid] {
			delete(l.over, uid)
		}
	}
	if len(limited) == 0 || !l.written() {
		return
	}
	for _, w := range limited {
		message := l.exceeded(ctx, w.share.Pod)
		if message == "" {
			continue
		}
		l.over[w.uid] = true
		l.event(w.share.Pod, corev1.EventTypeWarning, "Evicted", "%s", message)
		w.mail.putEviction(Eviction{Reason: "Evicted", Message: message, GraceSeconds: evictedGrace, Return: ReturnDelayed, Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message,
		}}})
	}
}

// written says whether there is more or less free than at the last look, anywhere that pods write to.
func (l *limits) written() bool {
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
func (l *limits) exceeded(ctx context.Context, pod *corev1.Pod) string {
	for _, v := range limitedVolumes(pod) {
		used, ok := l.volumeUse(ctx, pod, v.Name)
		if limit := v.EmptyDir.SizeLimit; ok && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	if !limitsStorage(pod) {
		return ""
	}
	use, err := l.storage(ctx, pod)
	if err != nil {
		l.log.Warn("what the pod has on the disk is not compared with its limit", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "error", err)
		return ""
	}
	return use.exceeded(pod)
}

// volumeUse is what an emptyDir has on the disk, by the file system's word where it counts it. A pod without users of its own can give its files to
// another project than the volume's, so that it takes more than the file system says: its are looked at one by one.
func (l *limits) volumeUse(ctx context.Context, pod *corev1.Pod, name string) (int64, bool) {
	if ownUsers(pod) {
		if used, ok := volume.Charged(l.cfg.RootDir, pod.UID, name); ok {
			return used, true
		}
	}
	return l.cfg.DiskUse(ctx, volume.EmptyDir(l.cfg.RootDir, pod.UID, name))
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
