package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"

	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) portForward() *cobra.Command {
	var t target
	var addresses []string
	cmd := &cobra.Command{
		Use: "port-forward POD [LOCAL:]REMOTE...", Short: "Reach ports of a pod on this machine's loopback address",
		Example: "  berth port-forward web 8080\n  berth port-forward web 9000:http :8080",
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl := c.client()
			p, err := t.find(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			ports, err := numbers(p, args[1:])
			if err != nil {
				return err
			}
			d, err := cl.Dialer(keyOf(p))
			if err != nil {
				return err
			}
			pf, err := portforward.NewOnAddressesForStreamingWithContext(cmd.Context(), d, addresses, ports, make(chan struct{}),
				cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err != nil {
				return commandline.Usage(err)
			}
			return pf.ForwardPorts()
		},
	}
	t.addFlags(cmd)
	cmd.Flags().StringSliceVar(&addresses, "address", []string{"localhost"}, "addresses to listen on")
	return cmd
}

// numbers replaces the names of the pod's ports by their numbers.
func numbers(p *corev1.Pod, specs []string) ([]string, error) {
	var out []string
	for _, s := range specs {
		local, remote, ok := strings.Cut(s, ":")
		if !ok {
			local, remote = "", s
		}
		if _, err := strconv.Atoi(remote); err != nil {
			n := port(p, remote)
			if n == 0 {
				return nil, commandline.Usagef("%s: pod %s has no port of the name %q", s, p.Name, remote)
			}
			remote = fmt.Sprint(n)
		}
		if !ok {
			local = remote
		}
		out = append(out, local+":"+remote)
	}
	return out, nil
}

func port(p *corev1.Pod, name string) int32 {
	for _, c := range append(append([]corev1.Container{}, p.Spec.Containers...), p.Spec.InitContainers...) {
		for _, x := range c.Ports {
			if x.Name == name {
				return x.ContainerPort
			}
		}
	}
	return 0
}
