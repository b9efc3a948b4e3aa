package config

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Command is `berth config`.
func Command(runDir func() string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Check configuration files, and show what comes of them",
		Long: `Check and show the configuration that 'berth agent' would have with the same files and flags. A flag is stronger than a drop-in,
a drop-in than the file, and the file than the default.`,
	}
	cmd.AddCommand(checkCommand(runDir), showCommand(runDir))
	return cmd
}

// load adds the flags of an agent to a command and returns what loads its configuration.
func load(cmd *cobra.Command, runDir func() string) func() (*Loaded, error) {
	c := Default()
	s := &Sources{}
	s.AddFlags(cmd.Flags())
	c.AddFlags(cmd.Flags())
	return func() (*Loaded, error) {
		s.RunDir, s.Given = runDir(), cmd.Flags()
		return s.Load()
	}
}

func checkCommand(runDir func() string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Say whether a configuration is good, and what of it does nothing here",
		Example: "  berth config check --config /var/lib/kubelet/config.yaml",
		Args:    cobra.NoArgs,
	}
	loaded := load(cmd, runDir)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := loaded()
		if err != nil {
			return err
		}
		if len(l.Ignored) > 0 {
			fmt.Fprintln(cmd.OutOrStdout(), "Good, but these fields do nothing here, or something else:")
			for _, i := range l.Ignored {
				fmt.Fprintln(cmd.OutOrStdout(), "  "+i)
			}
			return nil
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "Good.")
		return err
	}
	return cmd
}

func showCommand(runDir func() string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show a configuration as one file would have it",
		Long: `Show what files and flags say, merged, as a KubeletConfiguration and a BerthConfiguration; with --effective, the defaults too. What a
running agent has is at /configz of its API.`,
		Example: "  berth config show --config /etc/berth/config.yaml --config-dir /etc/berth/config.d --effective",
		Args:    cobra.NoArgs,
	}
	loaded := load(cmd, runDir)
	all := cmd.Flags().Bool("effective", false, "every setting, with the defaults")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := loaded()
		if err != nil {
			return err
		}
		kubelet, berth := l.Documents(*all)
		return writeDocuments(cmd.OutOrStdout(), kubelet, berth)
	}
	return cmd
}

func writeDocuments(w io.Writer, docs ...map[string]any) error {
	for i, d := range docs {
		out, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}
