package check

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/internal/commandline"
)

// ErrUnable is the command's error when something required is missing; the report was printed already.
var ErrUnable = errors.New("this machine cannot run pods")

// Command is `berth check`. It succeeds when everything required is there.
func Command(runDir func() string, pods Pods, cluster Cluster, upgrade Upgrade) *cobra.Command {
	c := Config{Pods: pods, Cluster: cluster, Upgrade: upgrade}
	var as commandline.Output
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find out whether this machine can run pods, and what is missing",
		Long: "Tries every kernel feature that pods need, in throwaway namespaces, groups and directories, and says what a missing one costs.\n" +
			"Looks for what else is in the way: another kubelet or berth, ports that are taken, a clock that is wrong, a slow disk. Says what to do.\n" +
			"Exits with 0 when all that is required is there, else with 1.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.RunDir = runDir()
			r := Run(cmd.Context(), c)
			if err := as.Print(cmd.OutOrStdout(), r, r.Print); err != nil {
				return err
			}
			if !r.OK() {
				cmd.SilenceErrors = true
				return ErrUnable
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&c.RootDir, "root-dir", "/var/lib/berth", "where the node will keep its data")
	cmd.Flags().StringVar(&c.CgroupMount, "cgroup-mount", "/sys/fs/cgroup", "where control groups are mounted")
	cmd.Flags().StringVar(&c.ConfigFile, "config", "", "configuration file that the agent is given (default those in /etc/berth and /var/lib/kubelet)")
	cmd.Flags().StringVar(&c.ConfigDir, "config-dir", "", "directory of further ones")
	as.AddFlag(cmd, "table")
	return cmd
}
