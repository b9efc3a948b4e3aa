package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) prune() *cobra.Command {
	var dryRun bool
	var as commandline.Output
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove images, dead containers and directories that no pod needs",
		Long: `Remove what no pod needs: images that no pod that is there uses or has used just now, dead containers that are kept for their
logs, and directories and logs of pods that are gone. Pinned images stay, and of each container the latest, which tells how the pod is.
What the images of a node have in common is counted with the last of them that goes.`,
		Example: "  berth prune --dry-run\n  berth prune -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.client().Prune(cmd.Context(), dryRun)
			if err != nil {
				return err
			}
			if err := as.Print(cmd.OutOrStdout(), p, func(w io.Writer) error { return tablePruned(w, p) }); err != nil {
				return err
			}
			if len(p.Errors) > 0 {
				return errors.New(strings.Join(p.Errors, "; "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	as.AddFlag(cmd)
	return cmd
}

func tablePruned(out io.Writer, p *api.Pruned) error {
	w := printers.GetNewTabWriter(out)
	if len(p.Items) > 0 {
		fmt.Fprintln(w, "KIND\tNAME\tPOD\tSIZE")
	}
	for _, f := range p.Items {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Kind, oneLine(f.Name), cmp.Or(oneLine(f.Pod), "<none>"), units.HumanSize(float64(f.Bytes)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	frees := "Freed"
	if p.DryRun {
		frees = "Would free"
	}
	_, err := fmt.Fprintf(out, "%s %s.\n", frees, units.HumanSize(float64(p.Bytes)))
	return err
}
