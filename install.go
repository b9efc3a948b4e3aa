package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/check"
	"github.com/berth-node/berth/agent/config"
	cgsystemd "github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/install"
	programs "github.com/berth-node/berth/internal/command"
	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/systemd"
)

// installing is what `berth install` was asked for.
type installing struct {
	destdir, from string
	packaged      bool
	dryRun        bool
	unchecked     bool
	start         bool
	args          []string // the agent's
	out           io.Writer
}

// servicePatience is how long a command of systemd may take: a unit may be stopping, or starting on a slow disk.
const servicePatience = 6 * time.Minute

func installCommand() *cobra.Command {
	i := installing{}
	cmd := &cobra.Command{
		Use: "install [-- AGENT-FLAG...]", Short: "Install berth on this machine, and start it",
		Long: `Copy the programs to where an administrator's own are, with units of systemd, a manual, completions and settings of the kernel,
make the directory of manifests, and start the agent, if this machine can run pods. What was installed is recorded, so that
berth uninstall removes it, and only it; a file that was there before is put back then.

With --destdir a tree is laid out and nothing is started, as packages are made.`,
		Example: "  berth install --dry-run\n  berth install\n  berth install -- --config /etc/berth/config.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return commandline.Usage(errors.New("flags of the agent come after --"))
			}
			i.args, i.out = args, cmd.OutOrStdout()
			return i.run(cmd.Context(), cmd.Root())
		},
	}
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().StringVar(&i.from, "from", "", "directory of berth, berth-helper and berth-wasm (default that of this program)")
	cmd.Flags().StringVar(&i.destdir, "destdir", "", "lay out a tree below this directory, and start nothing")
	cmd.Flags().BoolVar(&i.packaged, "packaged", false, "put files where a distribution's packages have them (/usr, not /usr/local)")
	cmd.Flags().BoolVar(&i.unchecked, "no-check", false, "install on a machine that berth check finds unable, too")
	cmd.Flags().BoolVar(&i.start, "start", true, "start the agent, now and at boot")
	return cmd
}

func (i *installing) run(ctx context.Context, root *cobra.Command) error {
	in := &install.Installation{Root: "/", Layout: install.Local(), Args: i.args}
	if i.packaged {
		in.Layout = install.Packaged()
	}
	here := i.destdir == ""
	if !here {
		in.Root, in.Untracked = i.destdir, true
	}
	if i.from == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		i.from = filepath.Dir(exe)
	}
	docs, err := install.Describe(root)
	if err != nil {
		return err
	}
	files := in.Layout.Files(install.Beside(i.from), docs, i.args...)
	if here {
		if err := i.preflight(ctx); err != nil {
			return err
		}
	}
	changes, err := in.Plan(files)
	if err != nil {
		return err
	}
	if err := printChanges(i.out, changes); err != nil {
		return err
	}
	if i.dryRun {
		return i.tellStart(in)
	}
	if err := in.Apply(files); err != nil {
		return err
	}
	if !here {
		return nil
	}
	return i.begin(ctx, in)
}

// preflight finds what stands in the way before anything is written.
func (i *installing) preflight(ctx context.Context) error {
	if other := filepath.Join(install.Packaged().Bin, "berth"); !i.packaged {
		if _, err := os.Stat(other); err == nil {
			return fmt.Errorf("%s is there, of a package: remove the package, or upgrade it instead", other)
		}
	}
	if !i.dryRun && os.Geteuid() != 0 {
		return errors.New("files are installed for the whole machine, which root may: sudo berth install, or --dry-run to see what it does")
	}
	what := check.Config{}
	c, err := agentConfig(config.DefaultRunDir, i.args)
	if err != nil {
		return err
	}
	if i.start {
		what.Starting = &c
	}
	r := check.Run(ctx, what)
	if r.OK() {
		return nil
	}
	if err := r.Print(i.out); err != nil {
		return err
	}
	if i.unchecked || i.dryRun {
		return nil
	}
	return fmt.Errorf("%w: nothing was installed; --no-check installs all the same", check.ErrUnable)
}

func printChanges(w io.Writer, changes []install.Change) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, c := range changes {
		what := c.What
		switch c.Kind {
		case install.Foreign:
			what += "; the file that is there becomes " + filepath.Base(c.Path) + install.ForeignSuffix
		case install.Edited:
			what += "; the file that is there was changed, and becomes " + filepath.Base(c.Path) + install.EditedSuffix
		case install.Create, install.Replace, install.Keep:
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Kind, c.Path, what)
	}
	return tw.Flush()
}

// starts are the commands that make an installation work, in their order.
func starts(in *install.Installation) []programs.Call {
	l := in.Layout
	call := func(name string, args ...string) programs.Call {
		return programs.Call{Name: name, Args: args, Deadline: servicePatience}
	}
	return []programs.Call{
		call("systemd-tmpfiles", "--create", filepath.Join(l.Tmpfiles, "berth.conf")),
		call("systemctl", "daemon-reload"),
		call("systemctl", "restart", "systemd-modules-load.service"),
		call("systemctl", "restart", "systemd-sysctl.service"),
		call("systemctl", "enable", "--now", systemd.AgentName),
	}
}

func (i *installing) tellStart(in *install.Installation) error {
	if i.start && i.destdir == "" {
		for _, c := range starts(in) {
			fmt.Fprintf(i.out, "run       %s %s\n", c.Name, strings.Join(c.Args, " "))
		}
	}
	return nil
}

// begin starts what was installed.
func (i *installing) begin(ctx context.Context, in *install.Installation) error {
	if !cgsystemd.Running() {
		if err := in.MakeDirs(); err != nil {
			return err
		}
		fmt.Fprintln(i.out, "systemd does not run here: start `berth agent` by what does.")
		return nil
	}
	if !i.start {
		return nil
	}
	for _, c := range starts(in) {
		if _, err := c.Run(ctx); err != nil {
			return fmt.Errorf("start the agent: %w; what was installed stays: `journalctl -u berth` says more, `berth uninstall` takes it back", err)
		}
	}
	fmt.Fprintf(i.out, "The agent runs. Put manifests into %s; `berth pods` shows what becomes of them.\n", in.Layout.Manifests)
	return nil
}
