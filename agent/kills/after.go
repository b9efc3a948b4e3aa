package kills

import (
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/oom"
)

// reason is that of the node problem detector.
const reason = "OOMKilling"

// How long after a kill something is waited for.
const (
	nameFor  = 5 * time.Second // the pod's status, which may not have the container yet
	runsFor  = 2 * time.Second // a container that ends with the process
	afterFor = time.Minute     // to know what became of it
)

// add keeps a report, with what the groups say now. It is told by the next [Manager.step].
func (k *Manager) add(r *oom.Report) {
	group := k.containerGroup(r.Kill.Group)
	if uid, id, ok := k.cfg.Groups.Owner(r.Kill.Group); ok {
		r.UID, r.ContainerID = string(uid), id
	}
	if id := r.ContainerID; id != "" {
		r.Before = k.toldOf(id)
	}
	r.LimitName = k.limitName(r)
	if r.Groups == nil && r.Kill.Group != "" {
		r.Groups = k.look(r.Kill.Group, r.Kill.LimitGroup)
	}
	r.Node = k.cfg.Node()
	k.kept = append(k.kept, r)
	k.open = append(k.open, &open{Report: r, group: group, since: time.Now()})
}

// look reads the figures of the container that a group is in, of its pod, and of the group whose limit it was.
func (k *Manager) look(of, limit string) []oom.Figures {
	group := k.containerGroup(of)
	pod := group
	if _, id, _ := k.cfg.Groups.Owner(of); id != "" {
		pod = path.Dir(group)
	}
	return k.cfg.Groups.Look(group, pod, limit)
}

// step goes on with what is open: whose it was, and what became of the container.
func (k *Manager) step(now time.Time) {
	if len(k.open) == 0 {
		return
	}
	pods := map[string]*corev1.Pod{}
	for _, p := range k.cfg.Pods() {
		pods[string(p.UID)] = p
	}
	news := false
	k.open = slices.DeleteFunc(k.open, func(o *open) bool {
		p, waited := pods[o.UID], now.Sub(o.since)
		if !o.told && (o.name(p) || waited >= nameFor) {
			o.told, news = true, true
			k.tell(p, o.Report)
		}
		if o.After == nil {
			o.After = k.after(o, p, now)
			news = news || o.After != nil
		}
		return o.told && (o.After != nil || waited >= afterFor)
	})
	if news {
		k.save()
	}
}

// name says whose a kill was, and whether that is known.
func (o *open) name(p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	o.Namespace, o.Pod = p.Namespace, p.Name
	for _, c := range statuses(p) {
		if bare(c.ContainerID) == o.ContainerID || lastID(c) == o.ContainerID {
			o.Container = c.Name
		}
	}
	return o.Container != "" || o.ContainerID == ""
}

// tell makes an event of the pod.
func (k *Manager) tell(p *corev1.Pod, r *oom.Report) {
	if p == nil {
		return
	}
	container := "a container that is gone"
	if r.Container != "" {
		container = "container " + r.Container
	}
	told := *r
	told.Kill.Comm = printable(told.Kill.Comm)
	k.cfg.Events.Event(p, corev1.EventTypeWarning, reason, "%s: %s", container, told.Describe())
}

// after is what became of the container; nil: that is not known yet.
func (k *Manager) after(o *open, p *corev1.Pod, now time.Time) *oom.After {
	waited := now.Sub(o.since)
	if p == nil {
		if waited < nameFor {
			return nil
		}
		return &oom.After{State: oom.Gone, Time: now}
	}
	for _, c := range statuses(p) {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && bare(t.ContainerID) == o.ContainerID {
				return &oom.After{State: oom.Ended, Time: t.FinishedAt.Time, ExitCode: t.ExitCode, Reason: t.Reason}
			}
		}
		if c.State.Running == nil || bare(c.ContainerID) != o.ContainerID || waited < runsFor {
			continue
		}
		pids, err := k.cfg.Groups.Pids(o.group)
		if err == nil && len(pids) > 0 && !slices.Contains(pids, o.Kill.Pid) {
			return &oom.After{State: oom.Runs, Time: now}
		}
	}
	return nil
}

func lastID(c corev1.ContainerStatus) string {
	if t := c.LastTerminationState.Terminated; t != nil {
		return bare(t.ContainerID)
	}
	return ""
}

// printable leaves out what a process is called that would steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
