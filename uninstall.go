package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/config"
	cgsystemd "github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/upgrade"
	programs "github.com/berth-node/berth/internal/command"
	"github.com/berth-node/berth/systemd"
)

type uninstalling struct {
	dryRun, purge bool
	patience      time.Duration
	runDir        string
	out           io.Writer
}

func uninstallCommand(runDir func() string) *cobra.Command {
	u := uninstalling{}
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Remove what berth install has installed",
		Long: `Stop the agent and then the pods, gracefully, and remove what berth install has installed. What somebody has changed stays, and is
named. Images, volumes and logs stay unless --purge is given; manifests and configuration stay in any case.`,
		Example: "  berth uninstall --dry-run\n  berth uninstall\n  berth uninstall --purge",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u.runDir, u.out = runDir(), cmd.OutOrStdout()
			return u.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVar(&u.purge, "purge", false, "remove images, volumes, logs and all else that the node has made, too")
	cmd.Flags().DurationVar(&u.patience, "pods-timeout", 5*time.Minute, "how long pods may take to end; what then runs keeps berth from being removed")
	return cmd
}

func (u *uninstalling) run(ctx context.Context) error {
	in := &install.Installation{Root: "/", Layout: install.Local()}
	args, installed, err := in.Installed()
	switch {
	case err != nil:
		return err
	case !installed:
		return fmt.Errorf("berth install has installed nothing here (no %s): a package is removed by what has installed it", in.RecordPath())
	}
	c, err := agentConfig(u.runDir, args)
	if err != nil {
		return err
	}
	plan, err := in.PlanRemoval()
	if err != nil {
		return err
	}
	u.tell(plan, c)
	if u.dryRun {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can uninstall: sudo berth uninstall, or --dry-run to see what it does")
	}
	upgrades := filepath.Join(in.Layout.Libexec, upgradesDir)
	if err := forgetUpgrades(upgrades, false); err != nil {
		return err
	}
	binary := filepath.Join(in.Layout.Bin, "berth")
	if _, err := os.Stat(binary); errors.Is(err, fs.ErrNotExist) { // a removal was killed at its end
		if binary, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	if err := u.end(ctx, binary, args, c); err != nil {
		return err
	}
	if u.purge {
		endpoints, err := agent.Runtimes(c.RootDir)
		if err != nil {
			return err
		}
		if err := purge(ctx, c.Place, c.CSI.Local, endpoints, c.CNIBinDirs, c.Logger(os.Stderr)); err != nil {
			return fmt.Errorf("%w; nothing was uninstalled, and it can be run again", err)
		}
	}
	if err := forgetUpgrades(upgrades, true); err != nil {
		return err
	}
	if _, err := in.Remove(); err != nil {
		return err
	}
	in.RemoveDirs()
	return stopSlice(ctx)
}

// stopSlice has systemd forget the units that are gone, and the slice that they were in.
func stopSlice(ctx context.Context) error {
	if !cgsystemd.Running() {
		return nil
	}
	if err := programs.Run(ctx, "systemctl", "daemon-reload"); err != nil || inSlice() {
		return err
	}
	return programs.Run(ctx, "systemctl", "stop", systemd.SliceName)
}

// inSlice says whether a process is in the slice, and would end with it. Where nobody stops it, it is there until the
// next boot, though its unit is gone.
func inSlice() bool {
	found := false
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd"} {
		_ = filepath.WalkDir(filepath.Join(hierarchy, systemd.SliceName), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil // a group that has gone has none
			}
			procs, err := os.ReadFile(path)
			found = found || err == nil && len(procs) > 0
			return nil
		})
	}
	return found
}

// upgradesDir is the directory that upgrades are recorded in, below that of the helpers.
const upgradesDir = "upgrade"

// forgetUpgrades refuses to go on while an upgrade is not finished, and, when it is meant, removes what is kept of the
// last one.
func forgetUpgrades(dir string, meant bool) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all, err := upgrade.Open(dir, func(string) {})
	if err != nil {
		return err
	}
	defer all.Close()
	cut, err := all.UnderWay()
	switch {
	case err != nil:
		return err
	case cut != nil:
		return fmt.Errorf("%w: `berth upgrade --resume` finishes it, and --rollback takes it back", upgrade.ErrUnderWay)
	case meant:
		return all.Forget()
	}
	return nil
}

func (u *uninstalling) tell(plan install.Removal, c config.Config) {
	fmt.Fprintln(u.out, "stop      the agent, and then all pods")
	if u.purge {
		for _, dir := range []string{c.RootDir, c.RunDir, c.LogDir} {
			fmt.Fprintf(u.out, "purge     %s\n", dir)
		}
	}
	for _, path := range plan.Files {
		fmt.Fprintf(u.out, "remove    %s\n", path)
	}
	for _, path := range slices.Sorted(maps.Keys(plan.Kept)) {
		fmt.Fprintf(u.out, "keep      %s: %s\n", path, plan.Kept[path])
	}
	if !u.purge {
		fmt.Fprintf(u.out, "keep      %s, %s: images, volumes and logs, which --purge removes\n", c.RootDir, c.LogDir)
	}
}

// end stops the services, and then the pods: by an agent that has no manifests, so that they end as they do when theirs
// are removed.
func (u *uninstalling) end(ctx context.Context, binary string, args []string, c config.Config) error {
	if cgsystemd.Running() {
		// Of files that are gone it still has what they said.
		if err := programs.Run(ctx, "systemctl", "daemon-reload"); err != nil {
			return fmt.Errorf("stop the agent: %w", err)
		}
		for _, unit := range []string{systemd.AgentName, systemd.RuntimeName} {
			if err := stopUnit(ctx, unit); err != nil {
				return fmt.Errorf("stop the agent: %w", err)
			}
		}
	}
	lock, err := agent.Lock(c.RunDir)
	if err != nil {
		return fmt.Errorf("%w: stop what berth install has not started", err)
	}
	lock.Close()
	none, err := os.MkdirTemp("", "berth-uninstall-")
	if err != nil {
		return fmt.Errorf("make directory without manifests: %w", err)
	}
	defer func() { _ = os.RemoveAll(none) }()
	ctx, cancel := context.WithTimeout(ctx, u.patience)
	defer cancel()
	last := exec.CommandContext(ctx, binary, append(append([]string{"--run-dir", c.RunDir, "agent"}, args...),
		"--manifest-dir", none, "--manifest-url", "", "--log-level", "warn")...)
	last.Stderr = os.Stderr
	last.Cancel = func() error { return last.Process.Signal(syscall.SIGTERM) }
	last.WaitDelay = 10 * time.Second
	// What goes on without this program would have the lock of the run directory, and no manifests.
	ended, err := programs.StartWithParent(last, syscall.SIGTERM)
	if err != nil {
		return fmt.Errorf("start an agent that ends the pods: %w", err)
	}
	err = u.empty(ctx, c.RunDir, ended)
	if err == nil {
		err = last.Process.Signal(syscall.SIGTERM)
	}
	cancel()
	for range ended { // it has ended when all of that is taken, and what went wrong it has said itself
	}
	return err
}

// stopUnit stops a unit and has no boot start it. One whose file is gone, as after a removal that was killed, may run
// all the same, and systemd takes it amiss when it is to be disabled.
func stopUnit(ctx context.Context, unit string) error {
	systemctl := func(args ...string) (programs.Output, error) {
		return programs.Call{Name: "systemctl", Args: append(args, unit), Deadline: servicePatience}.Run(ctx)
	}
	out, err := systemctl("show", "-p", "LoadState", "-p", "ActiveState")
	if err != nil {
		return err
	}
	state := strings.Fields(out.Out)
	if !slices.Contains(state, "LoadState=not-found") {
		_, err = systemctl("disable", "--now")
		return err
	}
	_, _ = systemctl("disable") // takes away links that lead to no file; it fails where there are none
	if !slices.Contains(state, "ActiveState=inactive") {
		_, err = systemctl("stop")
	}
	return err
}

// empty waits until the node has no pods: none that the agent knows of, and nothing that is left of one.
func (u *uninstalling) empty(ctx context.Context, runDir string, agentEnded <-chan error) error {
	ctx, cancel := context.WithCancel(ctx)
	n := newNews(client.New(runDir))
	defer func() {
		cancel()
		n.end()
	}()
	sandboxes := filepath.Join(runDir, "sandboxes")
	if err := n.listen(ctx, runDir, sandboxes); err != nil {
		return fmt.Errorf("watch run directory: %w", err)
	}
	told := ""
	for {
		pods, err := n.client.Pods(ctx, "")
		left, _ := os.ReadDir(sandboxes)
		if err == nil && len(pods) == 0 && len(left) == 0 {
			return nil
		}
		if now := fmt.Sprintf("%d pods are ending", max(len(pods), len(left))); err == nil && now != told {
			told = now
			fmt.Fprintln(u.out, now)
		}
		select {
		case how := <-agentEnded:
			return errors.Join(errors.New("end the pods: the agent that was to do it has ended, for the reason above; nothing was removed"), how)
		case <-ctx.Done():
			return fmt.Errorf("end the pods: %w: nothing was removed, and what runs goes on; `berth agent` takes it over", ctx.Err())
		case <-n.changed:
		}
	}
}

// news hears of pods by the agent's watch, and of what is left of them by the directories that it is in.
type news struct {
	client  *client.Client
	changed chan struct{} // something may be otherwise
	again   chan struct{} // the agent's socket may be there now
	files   *fsnotify.Watcher
	wait    sync.WaitGroup
}

func newNews(c *client.Client) *news {
	return &news{client: c, changed: make(chan struct{}, 1), again: make(chan struct{}, 1)}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// listen begins to hear, until ctx ends.
func (n *news) listen(ctx context.Context, runDir, sandboxes string) error {
	var err error
	if n.files, err = fsnotify.NewWatcher(); err != nil {
		return err
	}
	if err := n.files.Add(runDir); err != nil {
		return err
	}
	_ = n.files.Add(sandboxes) // made by the first runtime here: it is heard of in the run directory
	n.wait.Go(func() {
		for e := range n.files.Events {
			if e.Name == sandboxes && e.Has(fsnotify.Create) {
				_ = n.files.Add(sandboxes)
			}
			ring(n.changed)
			ring(n.again)
		}
	})
	n.wait.Go(func() {
		for ctx.Err() == nil {
			// It fails until there is an agent, and ends with it: the next one makes its socket anew.
			_ = n.client.WatchPodsFrom(ctx, "", func() error { ring(n.changed); return nil },
				func(watch.EventType, *corev1.Pod) error { ring(n.changed); return nil })
			select {
			case <-ctx.Done():
			case <-n.again:
			}
		}
	})
	return nil
}

// end waits for all that listens; its context has ended.
func (n *news) end() {
	if n.files != nil {
		n.files.Close()
	}
	n.wait.Wait()
}
