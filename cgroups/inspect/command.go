package inspect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// ErrProblems is the error of `check` when it found some; they were printed already.
var ErrProblems = errors.New("the groups are not as the pods say")

// app is what the commands share.
type app struct {
	live    Live
	from    string
	capture string
	output  string
	runDir  func() string
	order   Order
	need    need
}

// Command is `berth cgroups`. runDir is where the agent of this machine is found, order that in which pods are evicted.
func Command(runDir func() string, order Order) *cobra.Command {
	a := &app{runDir: runDir, order: order}
	cmd := &cobra.Command{
		Use:   "cgroups",
		Short: "Show and explain the control groups of pods",
		Long: "Shows what each pod and container may use, uses, and why it was slowed or killed. Works on the live machine with or without an\n" +
			"agent, on a node that a kubelet runs, and with --from on a tree that --capture wrote elsewhere.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.capture == "" {
				return cmd.Help()
			}
			_, err := a.snapshot(cmd)
			return err
		},
	}
	f := cmd.PersistentFlags()
	f.StringVar(&a.from, "from", "", "read this capture instead of the machine")
	f.StringVar(&a.capture, "capture", "", "write what was read to this file (.gz: compressed)")
	f.StringVar(&a.live.PodsFile, "pods", "",
		"file with the pods' specifications (kubectl get pods -A -o json); default: ask the agent")
	f.StringVar(&a.live.Endpoint, "runtime-endpoint", "",
		"socket of the container runtime, asked where no agent answers; default: those of the usual places")
	f.StringVar(&a.live.Manifests, "manifests", "/etc/kubernetes/manifests",
		"static pods of a kubelet, read where no agent answers")
	f.StringVar(&a.live.KubeletDir, "kubelet-dir", "/var/lib/kubelet",
		"kubelet's root directory, which tells whom its CPU and memory managers gave what")
	f.StringVar(&a.live.CgroupMount, "cgroup-mount", cgroups.DefaultMount, "where control groups are mounted")
	f.StringVar(&a.live.CgroupRoot, "cgroup-root", "/",
		"group below which kubepods is; default: where the agent of the run directory has it")
	f.StringVar(&a.live.LogDir, "log-dir", "/var/log/pods",
		"logs of pods, whose directory names tell the pods' names; default: the agent's")
	f.StringVarP(&a.output, "output", "o", "", "json, yaml or wide")
	cmd.AddCommand(a.treeCommand(), a.topCommand(), a.showCommand(), a.explainCommand(), a.findCommand(), a.checkCommand(),
		a.watchCommand())
	return cmd
}

// gcPercent is for who ends when what it has read is printed: nearly all of that lives until then.
const gcPercent = 400

// snapshot reads the machine or the capture, and writes the capture that was asked for.
func (a *app) snapshot(cmd *cobra.Command) (*Snapshot, error) {
	if err := a.checkOutput(); err != nil {
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	var s *Snapshot
	var err error
	if a.from != "" {
		s, err = Load(a.from)
	} else {
		if err = a.locate(cmd); err != nil {
			return nil, err
		}
		if a.capture != "" {
			a.need = need{whole: true, kills: true}
		}
		s, err = a.live.capture(cmd.Context(), a.need)
	}
	if err != nil {
		return nil, err
	}
	if a.capture != "" {
		if err := s.Save(a.capture); err != nil {
			return nil, err
		}
	}
	return s, mustHaveGroups(s)
}

// locate finds out where the groups are: the agent of the run directory has left word, and what is said here goes
// before it.
func (a *app) locate(cmd *cobra.Command) error {
	a.live.RunDir = a.runDir()
	layout, err := kube.LoadLayout(a.live.RunDir)
	switch {
	case errors.Is(err, os.ErrPermission) && !cmd.Flags().Changed("cgroup-root"):
		return fmt.Errorf("%w: only root may ask the agent (with --cgroup-root it is not asked where its groups are)", err)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		a.live.Evicts = &kube.Evicts{WorkingSet: true, SparesStatic: true} // a kubelet
		return nil
	case err != nil:
		return err
	}
	a.live.Options, a.live.NodeName, a.live.PinsFile = layout.Options, layout.NodeName, layout.Pins
	a.live.KillsFile, a.live.Evicts = layout.Kills, layout.Evicts
	if !cmd.Flags().Changed("cgroup-root") && layout.Root != "" {
		a.live.CgroupRoot = layout.Root
	}
	if !cmd.Flags().Changed("log-dir") && layout.LogDir != "" {
		a.live.LogDir = layout.LogDir
	}
	return nil
}

// print writes a value in the machine-readable form that was asked for, or calls plain.
func (a *app) print(cmd *cobra.Command, v any, plain func(io.Writer) error) error {
	if a.machines() {
		return a.encode(cmd.OutOrStdout(), v, false)
	}
	return plain(cmd.OutOrStdout())
}

func (a *app) treeCommand() *cobra.Command {
	var preset, columns, file string
	cmd := &cobra.Command{
		Use: "tree", Short: "The groups of all pods with what they use", Args: cobra.NoArgs,
		Long: "Presets: cpu, memory, io, psi, pids, cpuset, swap. --columns takes names (--columns help lists them) and files of the\n" +
			"group, such as memory.stat:anon=bytes. --columns-file adds columns and presets in the format of the built-in ones.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cols, all, err := a.columns(preset, columns, file)
			if err != nil {
				return err
			}
			if columns == "help" {
				return printHelp(cmd.OutOrStdout(), all)
			}
			if a.need = columnsNeed(cols); a.output == "json" || a.output == "yaml" {
				a.need.addUsage()
			}
			s, err := a.snapshot(cmd)
			if err != nil {
				return err
			}
			tops := s.nodes()
			return a.print(cmd, treeOf(tops), func(w io.Writer) error { return printTree(w, tops, cols) })
		},
	}
	cmd.Flags().StringVarP(&preset, "preset", "p", "", "columns by purpose")
	cmd.Flags().StringVar(&columns, "columns", "", "columns by name, with commas between")
	cmd.Flags().StringVar(&file, "columns-file", "", "file with more columns and presets")
	type words = []string
	_ = cmd.RegisterFlagCompletionFunc("preset", func(*cobra.Command, words, string) (words, cobra.ShellCompDirective) {
		return []string{"cpu", "memory", "io", "psi", "pids", "cpuset", "swap", "wide"}, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// columns picks the columns: those named, those of the preset, or the default ones.
func (a *app) columns(preset, columns, file string) ([]Column, *Columns, error) {
	var extra [][]byte
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("read columns: %w", err)
		}
		extra = append(extra, data)
	}
	all, err := loadColumns(extra...)
	if err != nil || columns == "help" {
		return nil, all, err
	}
	if preset == "" {
		preset = "default"
		if a.output == "wide" {
			preset = "wide"
		}
	}
	names, ok := all.Presets[preset]
	if !ok {
		return nil, nil, usagef("there is no preset %q", preset)
	}
	if columns != "" {
		names = strings.Split(columns, ",")
	}
	cols, err := all.list(names)
	if err != nil {
		err = usageError{err}
	}
	return cols, all, err
}

func printHelp(w io.Writer, all *Columns) error {
	rows := [][]string{{"COLUMN", "TITLE", "UNIT", "MEANING"}}
	for _, n := range sortedKeys(all.Columns) {
		c := all.Columns[n]
		rows = append(rows, []string{n, c.Title, c.Unit, c.Help})
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	rows = [][]string{{"", ""}, {"PRESET", "COLUMNS"}}
	for _, n := range sortedKeys(all.Presets) {
		rows = append(rows, []string{n, strings.Join(all.Presets[n], ",")})
	}
	return printTable(w, rows)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show POD[/CONTAINER]", Short: "Every setting and where it comes from", Args: cobra.ExactArgs(1),
		Long: "Shows of a pod, of one of its containers, or of a class (kubepods, burstable, besteffort) every setting: the file, what is in it,\n" +
			"what should be, the field that it comes from and the arithmetic. ! marks what differs. POD is a name, namespace/name, a uid or\n" +
			"the beginning of one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.need = settingsNeed()
			a.need.processes, a.need.of = true, func(s *Snapshot) (bool, error) { return false, s.narrow(args[0]) }
			s, err := a.snapshot(cmd)
			if err != nil {
				return err
			}
			n, err := s.nodes().lookup(args[0])
			if err != nil {
				return err
			}
			values := n.values(s.Machine.Options)
			v := struct {
				schema
				Tightest []Tightest `json:"tightestLimits"`
				Values   []Value    `json:"values"`
			}{thisSchema, list(n.tightest()), list(values)}
			return a.print(cmd, v, func(w io.Writer) error { return printValues(w, n, values) })
		},
	}
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

func (a *app) findCommand() *cobra.Command {
	return &cobra.Command{
		Use: "find PID|PATH|INODE|ID|UID|NAME", Short: "Which pod and container is this?", Args: cobra.ExactArgs(1),
		Long: "Takes the number of a process, the path or the inode of a group in any hierarchy (inode:N, or the id that BPF tools print), the id\n" +
			"of a container or its beginning (berth://ID too), a pod's uid, and a name.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := a.find(cmd, args[0])
			if err != nil {
				return err
			}
			return a.print(cmd, struct {
				schema
				Found
			}{thisSchema, f}, func(w io.Writer) error {
				rows := [][]string{{"POD", "CONTAINER", "UID", "GROUP"}, {dash(f.Pod), dash(f.Container), dash(f.UID), f.Path}}
				return printTable(w, rows)
			})
		},
	}
}

func (a *app) find(cmd *cobra.Command, what string) (Found, error) {
	if a.from == "" && a.capture == "" {
		if err := a.checkOutput(); err != nil {
			return Found{}, err
		}
		if err := a.locate(cmd); err != nil {
			return Found{}, err
		}
		return a.findLive(cmd.Context(), what)
	}
	s, err := a.snapshot(cmd)
	if err != nil {
		return Found{}, err
	}
	return s.nodes().find(what)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
			}{thisSchema, list(problems)}, func(w io.Writer) error { return printProblems(w, s, problems) })
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

func (a *app) watchCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use: "watch", Short: "Tell OOM kills, throttling, pressure and changed limits as they happen", Args: cobra.NoArgs,
		Long: "The kernel tells of groups that are made and removed, of written limits, of OOM kills and of pressure, and each is a line at\n" +
			"once. Of throttling it does not tell: groups with a CPU limit are looked at every --interval.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.from != "" {
				return usagef("a capture does not change: watch needs the live machine")
			}
			if err := errors.Join(a.checkOutput(), a.locate(cmd)); err != nil {
				return err
			}
			if err := a.live.mustHaveGroups(); err != nil {
				cmd.PrintErrf("note: %v; waiting for some\n", err)
			}
			return a.watch(cmd.Context(), cmd.OutOrStdout(), max(every, 100*time.Millisecond))
		},
	}
	cmd.Flags().DurationVar(&every, "interval", time.Second, "time between two looks for throttling")
	return cmd
}
