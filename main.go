// Command berth is a node agent for Linux with a container runtime in it, and the commands that show what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/check"
	"github.com/berth-node/berth/agent/check/security"
	"github.com/berth-node/berth/agent/cli"
	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cgroups/inspect"
	"github.com/berth-node/berth/cni"
	cricli "github.com/berth-node/berth/cri/cli"
	"github.com/berth-node/berth/internal/commandline"
	_ "github.com/berth-node/berth/internal/early" // answers before the other packages are initialized
)

// version is set by the build.
var version = "0.1.0-dev"

func main() {
	if cni.IsPlugin(os.Args[0]) {
		cni.PluginMain()
	}
	args := os.Args[1:]
	if isKubelet(os.Args[0]) {
		ours, answered := kubelet(args, os.Stdout)
		if answered {
			return
		}
		args = ours
	}
	os.Exit(run(args))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	interrupted := ctx.Err() != nil && errors.Is(err, context.Canceled)
	// The root keeps cobra from printing; a command that has told already what is wrong says so for itself.
	if !interrupted && (cmd == root || !cmd.SilenceErrors) {
		fmt.Fprintln(commandline.Visible(os.Stderr), "berth: "+err.Error())
	}
	var image *cricli.Error
	switch {
	case interrupted:
		return 128 + int(syscall.SIGINT)
	case errors.As(err, &image) && image.NotFound():
		return cli.ExitNotFound
	case errors.Is(err, inspect.ErrNotFound):
		return cli.ExitNotFound
	case errors.Is(err, inspect.ErrUsage):
		return cli.ExitUsage
	}
	return cli.ExitCode(err)
}

// command puts the commands together.
func command() *cobra.Command {
	runDir := os.Getenv(config.RunDirEnv)
	if runDir == "" {
		runDir = config.DefaultRunDir
	}
	root := &cobra.Command{
		Use: "berth", Short: "Run the pods of this machine",
		Long:         "berth runs the pods of this machine, out of a directory of manifests or under an API server, and shows what they do.\n\n" + cli.ExitHelp,
		SilenceUsage: true, SilenceErrors: true, Version: version,
	}
	root.PersistentFlags().StringVar(&runDir, "run-dir", runDir, "run directory, by which an agent is found; also $"+config.RunDirEnv)
	root.AddGroup(&cobra.Group{ID: "pods", Title: "Pods:"}, &cobra.Group{ID: "node", Title: "The node:"},
		&cobra.Group{ID: "machine", Title: "This machine:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	dir := func() string { return runDir }
	add("pods", cli.Commands(dir)...)
	add("node", cricli.Commands(func() *http.Client { return client.New(runDir).HTTP() }, commandline.Visible)...)
	checks := check.Command(dir, func(ctx context.Context) ([]corev1.Pod, error) {
		pods, err := client.New(runDir).Pods(ctx, "")
		if errors.Is(err, client.ErrNoAgent) {
			return nil, nil
		}
		return pods, err
	}, func(ctx context.Context) (cluster.State, error) {
		s, err := client.FindCluster(ctx, client.New(runDir))
		if errors.Is(err, client.ErrNoAgent) {
			return cluster.State{}, nil
		}
		return s, err
	}, cutOff)
	checks.SetOut(commandline.Visible(os.Stdout))
	security.AddTo(checks, dir, func() *http.Client { return client.New(runDir).HTTP() })
	add("node", inspect.Command(dir, evictionOrder), agentCommand(dir, version), config.Command(dir), runtimeCommand(dir, version),
		purgeCommand(dir), checks, csiLocalCommand(version), versionCommand(version))
	add("machine", installCommand(), upgradeCommand(dir), uninstallCommand(dir), unitCommand(), footprintCommand(dir))
	root.SetHelpCommandGroupID("node")
	root.SetCompletionCommandGroupID("node")
	commandline.MarkUsage(root)
	return root
}

func versionCommand(version string) *cobra.Command {
	form := &commandline.Output{}
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return form.Print(cmd.OutOrStdout(), struct {
				Version string `json:"version"`
			}{version}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "berth "+version)
				return err
			})
		},
	}
	form.AddFlag(cmd)
	return cmd
}
