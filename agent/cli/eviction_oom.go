package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/eviction/signal"
)

func (e *evictions) oom() *cobra.Command {
	var o printed
	var t target
	cmd := &cobra.Command{
		Use: "oom [POD]", Short: "Show what the kernel killed for want of memory, and why it was that process", Args: cobra.MaximumNArgs(1),
		Long: `Show what the kernel killed for want of memory in containers: the process and why it was that one, whose limit was
reached, the use by type, the processes there were, and what became of the container. For each figure it says whether
it is from the kernel's log or from the files of the groups, read a moment later.`,
		Example: "  berth eviction oom\n  berth eviction oom web", ValidArgsFunction: e.podsOfReports,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := e.ask().OOMReports(cmd.Context(), "", "")
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if all, err = reportsOf(all, t, args[0]); err != nil {
					return err
				}
			}
			if len(all) == 0 && !o.Machines() {
				fmt.Fprintln(cmd.ErrOrStderr(), "Nothing is known to have been killed.")
				return nil
			}
			return o.print(cmd, struct {
				Reports []oom.Report `json:"reports"`
			}{all}, func(w io.Writer) { printEach(w, all, printReport) })
		},
	}
	o.AddFlag(cmd)
	t.addFlags(cmd)
	return cmd
}

// podNamed says whether a pod is the one that is asked for, whose name may lack the node's at its end.
func podNamed(key types.NamespacedName, ns, name string) bool {
	return ns == key.Namespace && (name == key.Name || strings.HasPrefix(name, key.Name+"-"))
}

// reportsOf are those about one pod, which may be gone by now.
func reportsOf(all []oom.Report, t target, arg string) ([]oom.Report, error) {
	key, err := t.key(arg)
	if err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(all, func(r oom.Report) bool { return r.UID != arg && !podNamed(key, r.Namespace, r.Pod) })
	if len(kept) == 0 {
		message := fmt.Sprintf("it is not known that anything of pod %q in namespace %s was killed for want of memory", key.Name, key.Namespace)
		return nil, &client.Error{Code: http.StatusNotFound, Message: message}
	}
	return kept, nil
}

// podsOfReports completes the pods of which something was killed, those that are gone too.
func (e *evictions) podsOfReports(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := e.ask().OOMReports(cmd.Context(), "", "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var past []pastPod
	for i := range all {
		past = append(past, pastPod{all[i].Namespace, all[i].Pod, "killed", all[i].Kill.Time})
	}
	return completePast(cmd, past), cobra.ShellCompDirectiveNoFileComp
}

// pastPod is a pod to which something happened, and which may be gone.
type pastPod struct {
	namespace, name, what string
	at                    time.Time
}

// completePast are the names of pods in the namespace that is asked for, the latest first.
func completePast(cmd *cobra.Command, past []pastPod) []string {
	ns, _ := cmd.Flags().GetString("namespace")
	var names []string
	seen := map[string]bool{}
	for _, p := range slices.Backward(past) {
		if p.name == "" || p.namespace != cmp.Or(ns, metav1.NamespaceDefault) || seen[p.name] {
			continue
		}
		seen[p.name] = true
		names = append(names, oneLine(p.name)+"\t"+p.what+" "+age(metav1.NewTime(p.at), time.Now())+" ago")
	}
	return names
}

// printEach prints one after the other, with an empty line between.
func printEach[T any](w io.Writer, all []T, print func(io.Writer, *T)) {
	for i := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		print(w, &all[i])
	}
}

func printReport(w io.Writer, r *oom.Report) {
	who := "a pod that is gone (" + oneLine(cmp.Or(r.UID, r.Kill.Group)) + ")"
	if r.Pod != "" {
		who = oneLine(r.Namespace + "/" + r.Pod)
	}
	if r.Container != "" {
		who += ", container " + oneLine(r.Container)
	}
	fmt.Fprintf(w, "%s ago: %s\n", age(metav1.NewTime(r.Kill.Time), time.Now()), who)
	fmt.Fprintf(w, "  what: %s\n", oneLine(r.Describe()))
	if why := r.Kill.Why(); why != "" {
		fmt.Fprintf(w, "  why it: %s\n", oneLine(why))
	}
	for i := range r.Others {
		fmt.Fprintf(w, "  with it: process %d (%s)\n", r.Others[i].Pid, oneLine(r.Others[i].Comm))
	}
	if more := r.Count - 1 - len(r.Others); more > 0 && r.Source == oom.FromLog {
		fmt.Fprintf(w, "  with it: %d more\n", more)
	}
	if r.Before > 0 {
		fmt.Fprintf(w, "  before: %d were killed in this container earlier\n", r.Before)
	}
	fmt.Fprintf(w, "  then: %s\n", oneLine(r.After.Describe()))
	fmt.Fprintf(w, "  known from: %s\n", r.Source)
	if r.Kill.Dump != nil {
		printDump(w, r.Kill.Dump)
	}
	for i := range r.Groups {
		printFigures(w, &r.Groups[i], r.Kill.Time)
	}
	if n := r.Node; n != nil {
		fmt.Fprintf(w, "  node, %s later: %s available%s\n", n.Time.Sub(r.Kill.Time).Round(time.Millisecond), bytesOf(n.Available), pressureText(n.Pressure))
	}
}

// bytesOf is an amount of memory for people.
func bytesOf(n int64) string { return amount(signal.MemoryAvailable, n) }

func printDump(w io.Writer, d *oom.Dump) {
	of := "the node"
	if d.Group != "" {
		of = oneLine(d.Group)
	}
	note := ""
	if d.Partial {
		note = "; its beginning was overwritten"
	}
	fmt.Fprintf(w, "  kernel's log, of %s (process %s asked%s):\n", of, oneLine(cmp.Or(d.Invoker, "not known")), note)
	for _, c := range d.Counters {
		limit := "no limit"
		if c.Limit > 0 {
			limit = "limit " + bytesOf(int64(c.Limit))
		}
		fmt.Fprintf(w, "    %s: %s, %s, reached %d times\n", c.Name, bytesOf(c.Usage), limit, c.Failures)
	}
	var kinds []string
	// The largest first, which is what somebody asks for.
	for _, name := range slices.SortedFunc(maps.Keys(d.ByType), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.ByType[b], d.ByType[a]), cmp.Compare(a, b))
	}) {
		if n := d.ByType[name]; n > 0 {
			kinds = append(kinds, oneLine(name)+" "+bytesOf(n))
		}
	}
	if len(kinds) > 0 {
		fmt.Fprintf(w, "    by type: %s\n", strings.Join(kinds, ", "))
	}
	if len(d.Tasks) == 0 {
		return
	}
	fmt.Fprintf(w, "    %8s %8s %10s %10s %10s %6s %s\n", "PID", "UID", "RSS", "SWAP", "PAGETABLES", "ADJ", "NAME")
	for i := range d.Tasks {
		t := &d.Tasks[i]
		fmt.Fprintf(w, "    %8d %8d %10s %10s %10s %6d %s\n", t.Pid, t.UID, bytesOf(t.RSS), bytesOf(t.Swap), bytesOf(t.PageTables), t.ScoreAdj, oneLine(t.Comm))
	}
	if d.Others > 0 {
		fmt.Fprintf(w, "    and %d others that were less likely to go\n", d.Others)
	}
}

func printFigures(w io.Writer, f *oom.Figures, at time.Time) {
	limit, peak, swap := "no limit", "", ""
	if f.Limit > 0 {
		limit = "limit " + bytesOf(int64(f.Limit))
	}
	if f.Peak > 0 {
		peak = ", peak " + bytesOf(int64(f.Peak))
	}
	if f.Swap > 0 {
		swap = ", swap " + bytesOf(int64(f.Swap))
	}
	fmt.Fprintf(w, "  files of %s, %s later: usage %s, %s%s; anon %s, file %s, shmem %s%s; %d tasks, %d kills so far%s\n",
		oneLine(f.Group), f.Time.Sub(at).Round(time.Millisecond), bytesOf(int64(f.Usage)), limit, peak, bytesOf(int64(f.Anon)), bytesOf(int64(f.File)),
		bytesOf(int64(f.Shmem)), swap, f.Tasks, f.Kills, pressureText(f.Pressure))
}

func pressureText(p *cgroups.Pressure) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("; waited for memory in %.1f%% of the last 10 s, all of it in %.1f%%", p.Some.Avg10, p.Full.Avg10)
}
