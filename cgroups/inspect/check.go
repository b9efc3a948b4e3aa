package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// Problem is something about the groups that is not as the pods say.
type Problem struct {
	Kind string `json:"kind"` // orphan, missing, drift, misplaced, partial, stranger, inner, overlap, double
	Path string `json:"path"`
	Pod  string `json:"pod,omitempty"`
	Text string `json:"text"`
}

// audit compares the groups of a snapshot with what its pods should have by the node's options.
type audit struct {
	snap    *Snapshot
	options kube.Options
}

// problems compares the whole hierarchy with the pods.
func (a audit) problems() []Problem {
	var out []Problem
	groups := map[string][]*Node{}
	for _, n := range a.snap.nodes().all() {
		if len(n.files.Missing) > 0 {
			out = append(out, Problem{"partial", n.Path, n.Title, "does not exist in " + strings.Join(n.files.Missing, ", ")})
		}
		switch n.Kind {
		case kindPod:
			groups[n.UID] = append(groups[n.UID], n)
			out = append(out, a.pod(n)...)
		case kindOther:
			if n.UID == "" {
				out = append(out, Problem{"stranger", n.Path, "", "is not a pod's group"})
			}
		}
	}
	out = append(out, a.missing(groups)...)
	out = append(out, a.overlaps()...)
	for uid, list := range groups {
		if len(list) > 1 {
			out = append(out, Problem{"misplaced", list[0].Path, list[0].Title, fmt.Sprintf("pod %s has %d groups", uid, len(list))})
		}
	}
	slices.SortStableFunc(out, func(a, b Problem) int { return strings.Compare(a.Path+a.Kind, b.Path+b.Kind) })
	return out
}

// files are those that [audit.problems] looks at, of each group.
func (a audit) files() map[string]map[string]bool {
	out, o := map[string]map[string]bool{}, a.options
	o.NoCPUQuota = false // who has CPUs of its own has no quota, which is some files less
	for _, n := range a.snap.nodes().all() {
		files := map[string]bool{}
		if n.Kind != kindContainer { // pods and what they are in have the limits
			for _, k := range limitKinds() {
				files[k.v1], files[k.v2] = true, true
			}
			files["cpu.cfs_period_us"] = true
		}
		if n.Kind == kindPod || n.Kind == kindContainer {
			for _, want := range n.wanted(o) {
				for _, f := range want.Files() {
					files[f] = true
				}
			}
		}
		if a.needsPids(n) {
			files[procsFile] = true
		}
		if n.Kind == kindContainer && len(a.snap.Pins) > 0 {
			for _, f := range cpusetFiles() {
				files[f] = true
			}
		}
		out[n.Path] = files
	}
	return out
}

// needsPids says whether the processes of a group are looked at: of an orphan and all in it, of a pod whose own group
// must have none, and of a container that its pod does not run any more with what is in it.
func (a audit) needsPids(n *Node) bool {
	if n.pod == nil {
		return true
	}
	switch n.Kind {
	case kindPod:
		return a.snap.Machine.Mode == cgroups.Unified
	case kindContainer:
		now := running(n.pod, n.Title)
		return now != "" && now != n.ID
	}
	return true // it may be in such a container
}

func (a audit) pod(n *Node) []Problem {
	var out []Problem
	if text := a.orphan(n); text != "" {
		if pids := n.pids(); len(pids) > 0 {
			text += fmt.Sprintf(", but %d processes run in it", len(pids))
		}
		return append(out, Problem{"orphan", n.Path, n.Title, text})
	}
	if a.snap.Machine.Mode == cgroups.Unified && len(n.files.Pids) > 0 && len(n.Children) > 0 {
		out = append(out, Problem{"inner", n.Path, n.Title, "has processes beside its containers' groups, which cgroup v2 does not account to any"})
	}
	if n.pod == nil {
		return out
	}
	if q := kube.QoS(n.pod); q != n.Class {
		out = append(out, Problem{"misplaced", n.Path, n.Title, fmt.Sprintf("is among %s pods, its class is %s", n.Class, q)})
	}
	for _, c := range n.Children {
		if now := running(n.pod, c.Title); now != "" && now != c.ID && len(c.pids()) > 0 {
			out = append(out, Problem{"double", c.Path, n.Title, fmt.Sprintf("container %s still runs here, and again as %s", c.Title, shorten(now))})
		}
	}
	out = append(out, a.overruled(n)...)
	for _, v := range n.values(a.options) {
		if v.Differs && v.File != oomFile { // which a process may set itself
			out = append(out, Problem{"drift", v.Path, n.Title, fmt.Sprintf("%s is %q, should be %q (%s)", v.File, v.Found, v.Want, v.Field)})
		}
	}
	return out
}

// running is the ID under which a container of a pod runs by its status; "" when it does not.
func running(p *corev1.Pod, name string) string {
	st := p.Status
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for _, c := range list {
			if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.Name == name && c.State.Running != nil {
				return id
			}
		}
	}
	return ""
}

// orphan says why a group can be no pod's any more: nobody who knows all pods knows this one.
func (a audit) orphan(n *Node) string {
	switch {
	case n.pod != nil:
	case a.snap.PodsFrom != "" && !a.snap.Partial:
		return "no pod has this uid"
	case len(a.snap.Runtimes) > 0 && !a.snap.Names[n.UID].InRuntime:
		return "no sandbox has this uid"
	}
	return ""
}

// missing are running pods without a group.
func (a audit) missing(groups map[string][]*Node) []Problem {
	var out []Problem
	for i := range a.snap.Pods {
		p := &a.snap.Pods[i]
		if p.Status.Phase != corev1.PodRunning || len(groups[string(p.UID)]) > 0 {
			continue
		}
		group := kube.PodPath(a.snap.Machine.Root, p.UID, kube.QoS(p))
		out = append(out, Problem{"missing", group, p.Namespace + "/" + p.Name, "the pod runs, but has no group"})
	}
	return out
}

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Compare all groups with the pods", Args: cobra.NoArgs,
		Long: "Finds orphans, missing and half-made groups, pods in the wrong class, containers that run twice and values that somebody\n" +
			"changed. Exits with 0 when there are none, with 1 when there are any or when nothing could be looked at.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.need = settingsNeed()
			a.need.everywhere, a.need.partial = true, true
			a.need.each = func(s *Snapshot) map[string]map[string]bool { return audit{s, s.Machine.Options}.files() }
			s, err := a.snapshot(cmd)
			if err != nil {
				return err
			}
			problems := audit{s, s.Machine.Options}.problems()
			err = a.print(cmd, struct {
				schema
				Problems []Problem `json:"problems"`
				NotTold  []string  `json:"notTold"`
			}{thisSchema, list(problems), list(s.notTold())}, func(w io.Writer) error { return printProblems(w, s, problems) })
			if err != nil || len(problems) == 0 {
				return err
			}
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			return ErrProblems
		},
	}
}

func printProblems(w io.Writer, s *Snapshot, problems []Problem) error {
	if s.PodsFrom == "" || s.Partial {
		fmt.Fprintln(w, visible(s.ignorance()))
	}
	if len(problems) == 0 {
		_, err := fmt.Fprintf(w, "%d groups, all as they should be\n", len(s.Groups))
		return err
	}
	rows := [][]string{{"PROBLEM", "POD", "GROUP", "WHAT"}}
	for _, p := range problems {
		rows = append(rows, []string{p.Kind, dash(p.Pod), p.Path, p.Text})
	}
	return printTable(w, rows)
}

// notTold are the kinds of problems that there may be without anybody who could tell, of some pods at least.
func (s *Snapshot) notTold() (kinds []string) {
	if s.PodsFrom != "" && !s.Partial {
		return nil
	}
	if len(s.Runtimes) == 0 {
		kinds = append(kinds, "orphan")
	}
	return append(kinds, "missing", "drift")
}

// ignorance says what cannot be told, and why.
func (s *Snapshot) ignorance() string {
	whose, what := "no agent answered", "missing groups and drift"
	if s.Partial {
		whose, what = "only static pods are known, from "+s.PodsFrom, what+" of others"
	}
	if len(s.Runtimes) == 0 {
		what = "orphans, " + what
	}
	return "note: " + whose + ", so " + what + " cannot be told (--pods FILE)"
}
