package cli

import (
	"github.com/spf13/cobra"
)

func (c *commands) rm() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "rm POD", Aliases: []string{"delete"}, Short: "Say how a pod is removed",
		Long: `Pods of manifests run as long as their manifest is there, so this removes none of them: it says which file must go, and fails.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl := c.client()
			p, err := t.find(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return cl.Delete(cmd.Context(), keyOf(p))
		},
	}
	t.addFlags(cmd)
	return cmd
}
