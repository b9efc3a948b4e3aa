package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/config"
	cgsystemd "github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/install"
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
	if err := u.end(ctx, filepath.Join(in.Layout.Bin, "berth"), args, c); err != nil {
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
	if _, err := in.Remove(); err != nil {
		return err
	}
	in.RemoveDirs()
	if cgsystemd.Running() {
		return programs.Run(ctx, "systemctl", "daemon-reload")
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
		for _, unit := range []string{systemd.AgentName, systemd.RuntimeName} {
			call := programs.Call{Name: "systemctl", Args: []string{"disable", "--now", unit}, Deadline: servicePatience}
			if _, err := call.Run(ctx); err != nil {
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
	if err := last.Start(); err != nil {
		return fmt.Errorf("start an agent that ends the pods: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = last.Wait() // killed, or ended as it was told to; what went wrong it has said itself
	}()
	err = u.empty(ctx, c.RunDir, ended)
	if err == nil {
		err = last.Process.Signal(syscall.SIGTERM)
	}
	cancel()
	<-ended
	return err
}

// emptied is how often it is looked whether pods are gone when nothing is told of them.
const emptied = time.Second

// empty waits until the node has no pods.
func (u *uninstalling) empty(ctx context.Context, runDir string, agentEnded <-chan struct{}) error {
	c, tick := client.New(runDir), time.NewTicker(emptied)
	defer tick.Stop()
	told := ""
	for {
		pods, err := c.Pods(ctx, "")
		sandboxes, _ := os.ReadDir(filepath.Join(runDir, "sandboxes"))
		if err == nil && len(pods) == 0 && len(sandboxes) == 0 {
			return nil
		}
		if now := fmt.Sprintf("%d pods are ending", max(len(pods), len(sandboxes))); err == nil && now != told {
			told = now
			fmt.Fprintln(u.out, now)
		}
		select {
		case <-agentEnded:
			return errors.New("end the pods: the agent that was to do it has ended, for the reason above; nothing was removed")
		case <-ctx.Done():
			return fmt.Errorf("end the pods: %w: nothing was removed, and what runs goes on; `berth agent` takes it over", ctx.Err())
		case <-tick.C:
		}
	}
}
