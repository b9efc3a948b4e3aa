package security

import (
	"context"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/internal/commandline"
)

// AddTo gives a command that checks the machine a flag by which it audits the running node instead. client is of the
// agent's socket.
func AddTo(cmd *cobra.Command, runDir func() string, client func() *http.Client) {
	machine := cmd.RunE
	audit := cmd.Flags().Bool("security", false, "audit the running node: settings, ports, files and sockets, each deviation with what to do")
	cmd.Long += "\n\nWith --security the node that runs is audited: the items of the CIS benchmark for kubelets that apply, and who may read and write\n" +
		"what the node has made. Exits with 1 when something deviates; advice is not counted."
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*audit {
			return machine(cmd, args)
		}
		as, err := commandline.OutputOf(cmd)
		if err != nil {
			return err
		}
		return report(cmd.Context(), cmd, Config{RunDir: runDir(), HTTP: client()}, as)
	}
}

func report(ctx context.Context, cmd *cobra.Command, c Config, as *commandline.Output) error {
	r, err := Run(ctx, c)
	if err != nil {
		return err
	}
	if err := as.Print(cmd.OutOrStdout(), r, r.Print); err != nil {
		return err
	}
	if !r.Secure {
		cmd.SilenceErrors = true // the report says it
		return ErrDeviates
	}
	return nil
}
