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

// limits ends pods whose emptyDirs have more in them than they may. Those in memory are limited by the kernel.
type limits struct {
	*Manager
	free unix.Statfs_t      // at the last look
	over map[types.UID]bool // pods that were told to end
}

func (m *Manager) watchLimits(ctx context.Context) {
	if m.cfg.DiskUse == nil {
		return
	}
	l := limits{Manager: m, over: map[types.UID]bool{}}
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

// look counts only when something was written to the file system at all since the last time.
func (l *limits) look(ctx context.Context) {
	var limited []*worker
	here := map[types.UID]bool{}
	l.workers.Range(func(uid, w any) bool {
		one := w.(*worker) //nolint:forcetypeassert // nothing else is in there
		here[one.uid] = true
		if len(limitedVolumes(one.admitted)) > 0 && !l.over[one.uid] {
			limited = append(limited, one)
		}
		return true
	})
	for uid := range l.over {
		if !here[uid] {
			delete(l.over, uid)
		}
	}
	var free unix.Statfs_t
	if len(limited) == 0 || unix.Statfs(filepath.Join(l.cfg.RootDir, "pods"), &free) != nil {
		return
	}
	same := free.Bfree == l.free.Bfree && free.Ffree == l.free.Ffree
	if l.free = free; same {
		return
	}
	for _, w := range limited {
		for _, v := range limitedVolumes(w.admitted) {
			used, ok := l.cfg.DiskUse(ctx, volume.EmptyDir(l.cfg.RootDir, w.uid, v.Name))
			if limit := v.EmptyDir.SizeLimit; ok && used > limit.Value() {
				l.over[w.uid] = true
				message := fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
				l.event(w.admitted, corev1.EventTypeWarning, "Evicted", "%s", message)
				w.mail.putEviction(Eviction{Reason: "Evicted", Message: message, GraceSeconds: evictedGrace, Conditions: []corev1.PodCondition{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message,
				}}})
				break
			}
		}
	}
}

// limitedVolumes are the emptyDirs on the disk that have a limit.
func limitedVolumes(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			out = append(out, v)
		}
	}
	return out
}
