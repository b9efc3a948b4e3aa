package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/oom"
)

// Explanation tells why a pod was slowed or killed, and whether it is next.
type Explanation struct {
	schema
	Pod       string        `json:"pod"`
	CPU       []string      `json:"cpu"`
	Memory    []string      `json:"memory"`
	Other     []string      `json:"other"`
	OOM       []string      `json:"oom"`
	Evict     []string      `json:"eviction"`
	Before    []string      `json:"before"`              // what its status remembers of groups that are gone
	Groups    []groupJSON   `json:"groups"`              // the pod's and its containers', in figures
	OOMOrder  []ranked      `json:"oomOrder"`            // its processes, the next victim first
	Evictable *evictionJSON `json:"evictionOrder"`       // null without a specification
	Limits    []string      `json:"limits"`              // of groups above the pod, where they are less than its own
	Tightest  []Tightest    `json:"tightest"`            // of the pod
	Killed    []Killed      `json:"killed"`              // for want of memory, the latest last
	Note      string        `json:"killsNote,omitempty"` // why there may have been more
}

// whole has lists where there is nothing, which programs need not tell from null.
func (e Explanation) whole() Explanation {
	for _, l := range []*[]string{&e.CPU, &e.Memory, &e.Other, &e.OOM, &e.Evict, &e.Before, &e.Limits} {
		*l = list(*l)
	}
	e.Tightest, e.Killed = list(e.Tightest), list(e.Killed)
	return e
}

// Killed is a kill in a container of the pod.
type Killed struct {
	Container string `json:"container,omitempty"`
	oom.Kill
	Text string `json:"text"`
}

func explain(n *Node, order Order) Explanation {
	e := Explanation{schema: thisSchema, Pod: n.Title, Groups: []groupJSON{}, OOMOrder: n.ranks()}
	for _, g := range append([]*Node{n}, n.Children...) {
		e.Groups = append(e.Groups, groupOf(g, false))
	}
	for _, g := range append([]*Node{n}, n.Children...) {
		if g.Kind == kindContainer && g.Title == sandboxName {
			continue // its process sleeps
		}
		e.CPU = append(e.CPU, explainCPU(g)...)
		e.Memory = append(e.Memory, explainMemory(g)...)
		e.Other = append(e.Other, explainOther(g)...)
	}
	e.Killed, e.Note = n.snap.killed(n.UID), n.snap.KillsNote
	e.Limits, e.Tightest = explainLimits(n), n.tightest()
	e.OOM = explainOOM(n)
	e.Evict, e.Evictable = explainEviction(n, order)
	if n.pod != nil {
		e.Before = remembered(n.pod)
	}
	return e.whole()
}

// explainGone tells of a pod that has no group any more, by its status; false where no such pod is known.
func (s *Snapshot) explainGone(name string) (Explanation, bool) {
	for i := range s.Pods {
		p := &s.Pods[i]
		full := p.Namespace + "/" + p.Name
		if name != full && name != p.Name && name != string(p.UID) && name != strings.TrimSuffix(p.Name, "-"+cmp.Or(p.Spec.NodeName, s.nodeName())) {
			continue
		}
		e := Explanation{schema: thisSchema, Groups: []groupJSON{}, OOMOrder: []ranked{}, Pod: full, Before: []string{fmt.Sprintf("the pod is %s and has no group: nothing of it runs.", cmp.Or(p.Status.Phase, corev1.PodPending))}}
		if p.Status.Reason != "" || p.Status.Message != "" {
			e.Before = append(e.Before, strings.TrimSuffix(p.Status.Reason+": "+p.Status.Message, ": "))
		}
		e.Before = append(e.Before, remembered(p)...)
		e.Killed, e.Note = s.killed(string(p.UID)), s.KillsNote
		return e.whole(), true
	}
	return Explanation{}, false
}

// remembered is how the containers of a pod ended that ran before, or last: the kernel forgets with the group.
func remembered(p *corev1.Pod) []string {
	var out []string
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t == nil || t.ExitCode == 0 && t.Reason != "OOMKilled" {
					continue
				}
				out = append(out, fmt.Sprintf("container %s ended at %s with exit code %d, %s, after %s; it was restarted %s.",
					c.Name, t.FinishedAt.UTC().Format(time.RFC3339), t.ExitCode, cmp.Or(t.Reason, "no reason"), t.FinishedAt.Sub(t.StartedAt.Time).Round(time.Second), count(uint64(max(c.RestartCount, 0)), "time", "times")))
			}
		}
	}
	return out
}

func who(n *Node) string {
	if n.Kind == kindPod {
		return "the pod"
	}
	return "container " + n.Title
}

func explainCPU(n *Node) []string {
	var out []string
	c := n.Usage.CPU
	quota, limited := n.quota()
	switch {
	case limited && c.Periods > 0 && c.ThrottledPeriods > 0:
		share, _ := n.throttled()
		out = append(out, fmt.Sprintf("%s may use %.4g cores and was throttled in %d of the %d periods it ran in (%d / %d = %.1f%%), %s in all.",
			who(n), quota, c.ThrottledPeriods, c.Periods, c.ThrottledPeriods, c.Periods, share, durationText(time.Duration(c.ThrottledNs))))
	case limited:
		out = append(out, fmt.Sprintf("%s may use %.4g cores and was never throttled.", who(n), quota))
	case c.ThrottledPeriods > 0:
		out = append(out, fmt.Sprintf("%s has no limit now, but was throttled in %d periods before.", who(n), c.ThrottledPeriods))
	default:
		out = append(out, fmt.Sprintf("%s has no CPU limit: only its share against the others holds it back.", who(n)))
	}
	if p := n.Usage.PSI; p != nil && p.CPU.Some.Avg60 >= 1 {
		out = append(out, fmt.Sprintf("%s waited for CPU in %.1f%% of the last 10 s, %.1f%% of the last minute.", who(n), p.CPU.Some.Avg10, p.CPU.Some.Avg60))
	}
	return out
}

func explainMemory(n *Node) []string {
	var out []string
	m := n.Usage.Memory
	if m.Limit == cgroups.NoLimit {
		out = append(out, fmt.Sprintf("%s has no memory limit; it uses %s, of which the kernel could drop %s of file cache first (working set %s).",
			who(n), b(m.Usage), b(m.InactiveFile), b(m.WorkingSet)))
	} else {
		out = append(out, fmt.Sprintf("%s uses %s - %s inactive cache = %s of %s (%.0f%%); %s are left, the peak was %s (%.0f%%).",
			who(n), b(m.Usage), b(m.InactiveFile), b(m.WorkingSet), b(m.Limit), pct(m.WorkingSet, m.Limit), b(m.Available), b(m.Peak), pct(m.Peak, m.Limit)))
	}
	hits := limitHits(n)
	if kills := ownKills(n); kills > 0 {
		text := fmt.Sprintf("%s: the OOM killer took %s. ", who(n), count(kills, "process", "processes"))
		// On v1 recent kernels do not count a hit of the limit that ends in a kill: the peak tells of it.
		if hits > 0 || m.Limit != cgroups.NoLimit && m.Peak >= m.Limit {
			text += fmt.Sprintf("Its limit of %s was reached, the peak was %s.", limitText(m.Limit), b(m.Peak))
		} else {
			text += "Its own limit was not reached: it was that of a group below it or above."
		}
		out = append(out, text)
	}
	if hits > 0 {
		out = append(out, fmt.Sprintf("%s ran into its limit %s and the kernel had to reclaim.", who(n), count(hits, "time", "times")))
	}
	if high := ownEvents(n, "high", m.HighHits); high > 0 {
		out = append(out, fmt.Sprintf("%s was slowed down above its memory.high %s.", who(n), count(high, "time", "times")))
	}
	if p := n.Usage.PSI; p != nil && p.Memory.Some.Avg60 >= 1 {
		out = append(out, fmt.Sprintf("%s waited for memory in %.1f%% of the last 10 s, %.1f%% of the last minute.", who(n), p.Memory.Some.Avg10, p.Memory.Some.Avg60))
	}
	return out
}

// ownKills are those of the group itself. The kernel counts them in the groups above too, where they are no more than
// those of a part.
func ownKills(n *Node) uint64 {
	kills := n.Usage.Memory.OOMKills
	for _, c := range n.Children {
		kills -= min(kills, c.Usage.Memory.OOMKills)
	}
	return kills
}

// limitHits is how often use ran into the limit of the group itself.
func limitHits(n *Node) uint64 { return ownEvents(n, "max", n.Usage.Memory.LimitHits) }

// ownEvents counts what happened to the group itself: v2 counts that of the groups below too in memory.events, from
// which the other figure is, of kernels that tell no better.
func ownEvents(n *Node, name string, other uint64) uint64 {
	if v := n.files.value("memory.events.local:" + name); v != "" {
		if own, err := strconv.ParseUint(v, 10, 64); err == nil {
			return own
		}
	}
	return other
}

func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func explainOther(n *Node) []string {
	var out []string
	if p := n.Usage.Pids; p.Limit != cgroups.NoLimit && p.Current*10 >= p.Limit*9 {
		out = append(out, fmt.Sprintf("%s has %d of %d tasks; forks will fail.", who(n), p.Current, p.Limit))
	}
	if v := n.files.value("pids.events:max"); v != "" && v != "0" {
		out = append(out, fmt.Sprintf("%s could not fork %s times, its limit of tasks was reached.", who(n), v))
	}
	if p := n.Usage.PSI; p != nil && p.IO.Some.Avg60 >= 1 {
		out = append(out, fmt.Sprintf("%s waited for disks in %.1f%% of the last 10 s, %.1f%% of the last minute.", who(n), p.IO.Some.Avg10, p.IO.Some.Avg60))
	}
	if s := n.files.setting("freezer.state"); s == "FROZEN" || n.files.file("cgroup.freeze") == "1" {
		out = append(out, who(n)+" is frozen.")
	}
	return out
}

// candidate is a process in the order of the OOM killer.
type candidate struct {
	pid  int
	node *Node
	p    Process
}

// oomOrder lists the processes of all pods, the next victim first.
func (f forest) oomOrder() []candidate {
	var out []candidate
	for _, n := range f.all() {
		for _, pid := range n.files.Pids {
			if p, ok := n.snap.Processes[pid]; ok {
				out = append(out, candidate{pid, n, p})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p.OOMScore, a.p.OOMScore), cmp.Compare(b.p.RSS, a.p.RSS), cmp.Compare(a.pid, b.pid))
	})
	return out
}

// ranks are the pod's processes among all, the next victim first.
func (n *Node) ranks() []ranked {
	out := []ranked{}
	order := n.snap.nodes().oomOrder()
	for i, c := range order {
		if below(c.node.Path, n.Path) {
			out = append(out, ranked{c.pid, c.p.Comm, c.node.Title, c.p.OOMScore, c.p.OOMScoreAdj, c.p.RSS, i + 1, len(order)})
		}
	}
	return out
}

// maxProcesses are told of, for the rest of the screen to say something else.
const maxProcesses = 8

func explainOOM(n *Node) []string {
	var out []string
	order := n.ranks()
	for _, r := range order[:min(len(order), maxProcesses)] {
		out = append(out, fmt.Sprintf("process %d (%s) in %s: oom_score %d, adjusted by %d; when the node runs out of memory it is number %d of %d to be killed.",
			r.Pid, r.Comm, r.Container, r.OOMScore, r.OOMScoreAdj, r.Rank, r.Of))
	}
	if more := len(order) - maxProcesses; more > 0 {
		out = append(out, fmt.Sprintf("%s more of the pod, down to number %d (-o json has them all).", count(uint64(more), "process", "processes"), order[len(order)-1].Rank))
	}
	for _, c := range n.Children {
		if c.spec == nil || n.snap.Machine.Memory <= 0 {
			continue
		}
		field, computed, want := oomOrigin(c, kube.OOMScoreAdj(n.pod, c.spec, n.snap.hostMemory()))
		out = append(out, fmt.Sprintf("container %s should have oom_score_adj %s by %s: %s.", c.Title, want, field, computed))
	}
	if len(out) == 0 {
		out = append(out, "the pod has no processes that were seen.")
	}
	return out
}

func b(v uint64) string { return bytesText(float64(v)) }

func pct(a, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(a) / float64(of)
}

func limitText(v uint64) string {
	if v == cgroups.NoLimit {
		return "the node"
	}
	return b(v)
}

func (e Explanation) print(w io.Writer) error {
	var killed []string
	for _, k := range e.Killed {
		killed = append(killed, k.Text)
	}
	if e.Note != "" {
		killed = append(killed, "there may have been more kills: "+e.Note)
	}
	for _, s := range []struct {
		title string
		lines []string
	}{{"CPU", e.CPU}, {"Memory", e.Memory}, {"Limits", e.Limits}, {"Other", e.Other}, {"Kills", killed}, {"OOM killer", e.OOM}, {"Eviction", e.Evict}, {"Before", e.Before}} {
		if len(s.lines) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(w, s.title); err != nil {
			return err
		}
		for _, l := range s.lines {
			fmt.Fprintln(w, "  "+visible(l))
		}
	}
	return nil
}

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain POD", Short: "Why a pod was throttled or killed, and whether it is next", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.need = settingsNeed()
			a.need.addUsage()
			for _, f := range []string{"memory.events.local", "pids.events", "freezer.state", "cgroup.freeze"} {
				a.need.files[f] = true
			}
			a.need.processes, a.need.kills = true, true
			// Of other pods it takes what ranks them against this one: their memory, and what the kernel thinks of
			// their processes.
			a.need.of = func(s *Snapshot) (bool, error) {
				if err := s.narrow(args[0]); err != nil {
					s.Groups = nil // one that has gone is ranked nowhere
				}
				return false, nil
			}
			a.need.others = map[string]bool{}
			for _, f := range slices.Concat(filesOf("workingset"), filesOf("swap")) {
				a.need.others[f] = true
			}
			s, err := a.snapshot(cmd)
			if err != nil && (s == nil || len(s.Pods) == 0) {
				return err
			}
			n, err := s.nodes().lookup(args[0])
			if err == nil {
				e := explain(n, a.order)
				return a.print(cmd, e, e.print)
			}
			if e, ok := s.explainGone(args[0]); ok {
				return a.print(cmd, e, e.print)
			}
			return err
		},
	}
}
