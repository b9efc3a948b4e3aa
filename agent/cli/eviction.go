package cli

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/internal/commandline"
)

// evictions are the commands below berth eviction, each of which a method makes.
type evictions struct{ ask func() *client.Eviction }

func (e *evictions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "eviction", Short: "Show what the node runs short of, and which pods end for it",
		Long: `Show what the node runs short of, and which pods end for it: below a threshold (--eviction-hard,
--eviction-soft of berth agent) pods are evicted one after the other until there is enough again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.status(), e.rank(), e.why(), e.simulate(), e.oom())
	return cmd
}

// printed is a flag -o of commands that print a table, or the whole for programs.
type printed struct{ commandline.Output }

// print writes v as asked for, with table for people.
func (p *printed) print(cmd *cobra.Command, v any, table func(w io.Writer)) error {
	return p.Print(cmd.OutOrStdout(), v, func(out io.Writer) error {
		w := printers.GetNewTabWriter(out)
		table(w)
		return w.Flush()
	})
}

func (e *evictions) status() *cobra.Command {
	var o printed
	cmd := &cobra.Command{
		Use: "status", Short: "Show the node's conditions, and how much is left of what", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := e.ask().State(cmd.Context())
			if err != nil {
				return err
			}
			return o.print(cmd, s, func(w io.Writer) { printState(w, s) })
		},
	}
	o.AddFlag(cmd)
	return cmd
}

func printState(w io.Writer, s *pressure.State) {
	fmt.Fprintln(w, "CONDITION\tSTATUS\tFOR\tREASON\tMESSAGE")
	for _, c := range s.Conditions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, age(metav1.NewTime(c.Since), time.Now()), c.Reason, oneLine(c.Message))
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "SIGNAL\tAVAILABLE\tOF\tHARD\tSOFT")
	for _, l := range s.Signals {
		limits := map[string]string{}
		for _, t := range l.Thresholds {
			limits[t.Kind] = t.Value
			if strings.HasSuffix(t.Value, "%") {
				limits[t.Kind] += " (" + l.Signal.Format(t.At) + ")"
			}
			if t.Grace > 0 {
				limits[t.Kind] += " for " + t.Grace.String()
			}
			if t.Met {
				limits[t.Kind] += " met"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.Signal, amount(l.Signal, l.Available), amount(l.Signal, l.Capacity),
			cmp.Or(limits["hard"], "<none>"), cmp.Or(limits["soft"], "<none>"))
	}
	if len(s.Stalls) > 0 {
		fmt.Fprintln(w)
		fmt.Fprintln(w, "WAIT FOR\tOF\tSOME\tALL")
	}
	for _, l := range s.Stalls {
		fmt.Fprintf(w, "%s\t%s\t%.1f%%\t%.1f%%\n", l.For, l.Of, l.Some, l.All)
	}
	if s.Unknown != "" {
		fmt.Fprintf(w, "\nNot known: %s\n", oneLine(s.Unknown))
	}
}

// amount is one for people: of bytes whole Mi where there are some, else whole Ki.
func amount(of signal.Signal, n int64) string {
	for _, unit := range []int64{1 << 20, 1 << 10} {
		if of.Requestable() && (n >= unit || n <= -unit) {
			return of.Format(n / unit * unit)
		}
	}
	return of.Format(n)
}

// signalFlag is --signal, with its completion.
func signalFlag(cmd *cobra.Command, into *string) {
	var names []string
	for _, s := range signal.All() {
		names = append(names, string(s))
	}
	cmd.Flags().StringVar(into, "signal", string(signal.MemoryAvailable), "what the node is short of: "+strings.Join(names, ", "))
	complete(cmd, "signal", names...)
}

func (e *evictions) rank() *cobra.Command {
	var o printed
	var of string
	cmd := &cobra.Command{
		Use: "rank", Short: "Show in which order pods would go now, with the arithmetic", Args: cobra.NoArgs,
		Example: "  berth eviction rank\n  berth eviction rank --signal nodefs.available",
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines, err := e.ask().Rank(cmd.Context(), of)
			if err != nil {
				return asUsage(err)
			}
			return o.print(cmd, struct {
				Signal signal.Signal `json:"signal"`
				Unit   string        `json:"unit"`
				Ranked []rank.Line   `json:"ranked"`
			}{signal.Signal(of), signal.Signal(of).Unit(), lines}, func(w io.Writer) { printRank(w, lines) })
		},
	}
	o.AddFlag(cmd)
	signalFlag(cmd, &of)
	return cmd
}

func printRank(w io.Writer, lines []rank.Line) {
	fmt.Fprintln(w, "PLACE\tPOD\tQOS\tFIGURES\tBEFORE THE NEXT, AS")
	for _, l := range lines {
		place := "-"
		if l.Place > 0 {
			place = fmt.Sprint(l.Place)
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\t%s\n", place, oneLine(l.Pod.Namespace), oneLine(l.Pod.Name), l.Pod.QOS, l.Figures, l.Before)
	}
}

func (e *evictions) why() *cobra.Command {
	var o printed
	var t target
	cmd := &cobra.Command{
		Use: "why [POD]", Short: "Show past evictions, and why it was that pod", Args: cobra.MaximumNArgs(1),
		Example: "  berth eviction why\n  berth eviction why web", ValidArgsFunction: e.podsOfDecisions,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := e.ask().Decisions(cmd.Context(), "", "")
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if all, err = ofPod(all, t, args[0]); err != nil {
					return err
				}
			}
			if len(all) == 0 && !o.Machines() {
				fmt.Fprintln(cmd.ErrOrStderr(), "No pod was evicted.")
				return nil
			}
			return o.print(cmd, struct {
				Decisions []decided `json:"decisions"`
			}{withUnits(all)}, func(w io.Writer) { printEach(w, all, printDecision) })
		},
	}
	o.AddFlag(cmd)
	t.addFlags(cmd)
	return cmd
}

// decided is a decision with what its amounts are counted in.
type decided struct {
	Unit string `json:"unit"`
	eviction.Decision
}

func withUnits(all []eviction.Decision) []decided {
	var out []decided
	for _, d := range all {
		out = append(out, decided{d.Signal.Unit(), d})
	}
	return out
}

// ofPod are the decisions about one pod, which may be gone by now.
func ofPod(all []eviction.Decision, t target, arg string) ([]eviction.Decision, error) {
	key, err := t.key(arg)
	if err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(all, func(d eviction.Decision) bool { return !podNamed(key, d.Pod.Namespace, d.Pod.Name) })
	if len(kept) == 0 {
		message := fmt.Sprintf("it is not known that pod %q in namespace %s was evicted", key.Name, key.Namespace)
		return nil, &client.Error{Code: http.StatusNotFound, Message: message}
	}
	return kept, nil
}

// podsOfDecisions completes the pods that went, which may be gone by now.
func (e *evictions) podsOfDecisions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := e.ask().Decisions(cmd.Context(), "", "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var past []pastPod
	for i := range all {
		what := "evicted"
		switch r := all[i].Result; {
		case r.Told:
			what = "told to end"
		case r.Error != "":
			what = "was to go"
		}
		past = append(past, pastPod{all[i].Pod.Namespace, all[i].Pod.Name, what, all[i].Time})
	}
	return completePast(cmd, past), cobra.ShellCompDirectiveNoFileComp
}

func (e *evictions) simulate() *cobra.Command {
	var o printed
	var of, available, memory string
	cmd := &cobra.Command{
		Use: "simulate", Short: "Show who would go, in which order and until when, if only so much were left", Args: cobra.NoArgs,
		Example: "  berth eviction simulate --memory 50Mi\n  berth eviction simulate --signal nodefs.available --available 1Gi",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if memory != "" {
				if available != "" {
					return commandline.Usagef("--memory is --available of memory.available: give one of them")
				}
				of, available = string(signal.MemoryAvailable), memory
			}
			if available == "" {
				return commandline.Usagef("how much is left is missing, such as --memory 50Mi")
			}
			if _, err := resource.ParseQuantity(available); err != nil {
				return commandline.Usagef("--available %q: must be a quantity, such as 200Mi", available)
			}
			out, err := e.ask().Simulate(cmd.Context(), of, available)
			if err != nil {
				return asUsage(err)
			}
			return o.print(cmd, struct {
				Unit        string                `json:"unit"`
				Simulations []pressure.Simulation `json:"simulations"`
			}{signal.Signal(of).Unit(), out}, func(w io.Writer) { printSimulations(w, signal.Signal(of), out) })
		},
	}
	o.AddFlag(cmd)
	signalFlag(cmd, &of)
	cmd.Flags().StringVar(&available, "available", "", "how much would be left of it")
	cmd.Flags().StringVar(&memory, "memory", "", "how much memory would be left: the same as --signal memory.available --available")
	return cmd
}

func printSimulations(w io.Writer, of signal.Signal, all []pressure.Simulation) {
	if len(all) == 0 {
		fmt.Fprintf(w, "There is no threshold for %s: nobody would go.\n", of)
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s threshold %s<%s, with %s left:\n", s.Kind, of, s.Threshold, of.Format(s.Available))
		switch {
		case !s.Met:
			fmt.Fprintln(w, "it is not met: nobody goes.")
			continue
		case len(s.Steps) == 0:
			fmt.Fprintln(w, "no pod has any of it that may go.")
			continue
		}
		fmt.Fprintln(w, "POD\tQOS\tFREES\tLEFT THEN")
		for _, step := range s.Steps {
			fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\n", oneLine(step.Pod.Namespace), oneLine(step.Pod.Name), step.Pod.QOS,
				amount(of, step.Frees), amount(of, step.After))
		}
		if s.Enough {
			fmt.Fprintf(w, "then there is enough: %s.\n", amount(of, s.Until))
		} else {
			fmt.Fprintf(w, "which is not enough: %s.\n", amount(of, s.Until))
		}
	}
}

// asUsage has what the agent calls a bad request be wrong usage.
func asUsage(err error) error {
	if said, ok := err.(*client.Error); ok && said.Code == http.StatusBadRequest { //nolint:errorlint // the client's own
		return commandline.Usage(err)
	}
	return err
}
