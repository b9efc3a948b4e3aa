package inspect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	gomonitor "github.com/berth-node/berth/internal/monitor"
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
const gcPercent = 800

// once is for who ends when what it has read is printed. A thread of Go that looks ten thousand times a second whether
// a system call takes long has nobody else to let run here.
func once() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	_ = gomonitor.Relax() // without it all takes somewhat longer
}

// snapshot reads the machine or the capture, and writes the capture that was asked for.
func (a *app) snapshot(cmd *cobra.Command) (*Snapshot, error) {
	if err := a.checkOutput(); err != nil {
		return nil, err
	}
	once()
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
	if s.silent {
		cmd.PrintErrln("note: the agent takes connections, but does not answer (is it stopped or stuck?)")
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

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
			h, err := cgroups.Open(a.live.CgroupMount)
			if err == nil {
				err = a.live.mustHaveGroups(h)
			}
			if err != nil {
				cmd.PrintErrf("note: %v; waiting for some\n", err)
			}
			return a.watch(cmd.Context(), cmd.OutOrStdout(), max(every, 100*time.Millisecond))
		},
	}
	cmd.Flags().DurationVar(&every, "interval", time.Second, "time between two looks for throttling")
	return cmd
}
