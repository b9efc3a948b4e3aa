package cli

import (
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) condition() *cobra.Command {
	var t target
	var reason, message string
	cmd := &cobra.Command{
		Use: "condition POD TYPE=True|False|Unknown... [TYPE-...]", Short: "Set conditions of a pod's status",
		Long: `Set conditions of a pod's status, or take them away (TYPE-). A pod with readinessGates is ready when its containers are and each condition
that a gate names is True. Conditions are kept as long as the pod is on the node, over restarts of the agent too; a changed manifest
makes a pod without them. Those that the agent itself sets (Ready, PodScheduled and so on) cannot be set.`,
		Example: "  berth condition web example.com/registered=True --reason Registered\n  berth condition web " +
			"example.com/registered-",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			var set []corev1.PodCondition
			var remove []string
			for _, arg := range args[1:] {
				name, status, ok := strings.Cut(arg, "=")
				if gone, cut := strings.CutSuffix(arg, "-"); cut && !ok {
					remove = append(remove, gone)
					continue
				}
				if !ok || name == "" {
					return commandline.Usagef("%q is neither TYPE=STATUS nor TYPE-", arg)
				}
				set = append(set, corev1.PodCondition{
					Type: corev1.PodConditionType(name), Status: corev1.ConditionStatus(status), Reason: reason, Message: message,
				})
			}
			cl := c.client()
			p, err := t.find(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			_, err = cl.SetConditions(cmd.Context(), p, set, remove)
			return err
		},
	}
	t.addFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, in one word")
	cmd.Flags().StringVar(&message, "message", "", "why, for people")
	return cmd
}
