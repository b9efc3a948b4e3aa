package kills

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/oom"
)

// count tells of kills without the log until ctx ends. Of a v2 hierarchy the kernel tells at once that there was one,
// below any of the groups of pods. Of others nobody tells but the machine's count.
func (k *Manager) count(ctx context.Context) {
	told, end, err := k.cfg.Groups.Listen()
	if err != nil {
		k.cfg.Log.Info("the kernel does not tell of kills for want of memory at once", "error", err)
	}
	defer end()
	tick := time.NewTicker(countTime)
	defer tick.Stop()
	last, _ := oom.MachineCount()
	k.lookAndKeep()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-told:
			if !ok {
				told = nil // the group is gone
				continue
			}
			k.lookAndKeep()
		case <-tick.C:
			if now, err := oom.MachineCount(); err != nil || now != last {
				last = now
				k.lookAndKeep()
			}
		case <-k.changed:
			k.lookAndKeep() // a container may have ended by a kill, and its group with it
		case <-k.ticks():
			k.step(time.Now())
		}
	}
}

func (k *Manager) lookAndKeep() {
	if k.reckon(nil) {
		k.save()
	}
	k.step(time.Now())
}

// reckon makes reports of kills that the counters and statuses of containers tell of, and that were not told yet. Those
// that the log has told of, without saying where they were, are taken for them; if there are any, for nothing else. It
// says whether there were any.
func (k *Manager) reckon(homeless []oom.Kill) bool {
	byLog, found := len(homeless) > 0, false
	for _, p := range k.cfg.Pods() {
		groups, err := k.cfg.Groups.Containers(p)
		if err != nil {
			groups = nil // it has none, yet or any more
		}
		for _, id := range slices.Sorted(maps.Keys(groups)) {
			counted, err := k.cfg.Groups.Count(groups[id])
			before := k.toldOf(id)
			if err != nil || counted <= uint64(before) {
				continue
			}
			r := &oom.Report{Source: oom.FromCounts, Kill: oom.Kill{Time: time.Now(), Group: groups[id]}, Count: int(min(counted, 1<<30)) - before}
			if byLog {
				if len(homeless) == 0 {
					return found
				}
				n := min(len(homeless), r.Count)
				r.Source, r.Kill, r.Others = oom.FromLog, homeless[0], homeless[1:min(n, 1+maxOthers)]
				r.Kill.Group, r.Count = groups[id], n
				homeless = homeless[n:]
			}
			k.add(r)
			found = true
		}
		if !byLog {
			found = k.lookAtStatus(p) || found
		}
	}
	return found
}

// lookAtStatus makes reports of containers whose groups are gone, and of which the runtime says that they ended by a
// kill.
func (k *Manager) lookAtStatus(p *corev1.Pod) bool {
	found := false
	for _, c := range statuses(p) {
		for _, t := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if t == nil || t.Reason != "OOMKilled" {
				continue
			}
			id := bare(t.ContainerID)
			if id == "" || k.toldOf(id) > 0 {
				continue
			}
			k.add(&oom.Report{
				Source: oom.FromStatus, Kill: oom.Kill{Time: t.FinishedAt.Time}, Count: 1,
				UID: string(p.UID), ContainerID: id, Container: c.Name,
			})
			found = true
		}
	}
	return found
}

// toldOf is how many kills in a container were told.
func (k *Manager) toldOf(id string) int {
	for _, r := range slices.Backward(k.kept) {
		if r.ContainerID == id {
			return r.Before + r.Count
		}
	}
	return 0
}

// statuses are those of all of a pod's containers.
func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
}

// bare is an ID without the runtime's name before it.
func bare(id string) string {
	_, id, _ = strings.Cut(id, "://")
	return id
}
