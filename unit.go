package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/systemd"
)

// units are what `berth unit` prints, by the word that asks for it.
var units = map[string]func(binary string, args []string) string{
	"agent":   func(b string, args []string) string { s := systemd.AgentService(b, args...); return s.Unit() },
	"runtime": func(b string, args []string) string { s := systemd.RuntimeService(b, args...); return s.Unit() },
	"kubelet": func(b string, args []string) string { s := systemd.AgentService(b, args...); return s.DropIn() },
	"slice":   func(string, []string) string { return systemd.Slice() },
}

func unitCommand() *cobra.Command {
	asKubelet := false
	cmd := &cobra.Command{
		Use: "unit [agent|runtime|kubelet|slice] [-- FLAG...]", Short: "Print a systemd unit",
		Long: `Print a unit of systemd, with the reason of each line: that of the agent (` + systemd.AgentName + `), of the runtime alone
(` + systemd.RuntimeName + `), of the slice that both are in (` + systemd.SliceName + `), or a drop-in by which the agent runs as
kubelet.service. What follows -- are the service's own flags. Packages and berth install have the same units.

With --as-kubelet it is kubelet.service as kubeadm knows it: what kubeadm writes for a kubelet says what the agent is started with. It
is good as the unit, and as a drop-in where kubeadm's package has one.`,
		Example: "  berth unit > /etc/systemd/system/berth.service\n  berth unit slice > /etc/systemd/system/berth.slice\n" +
			"  berth unit -- --manifest-dir /etc/kubernetes/manifests\n" +
			"  berth unit kubelet -- --config /var/lib/kubelet/config.yaml > /etc/systemd/system/" + systemd.KubeletDropIn +
			"\n  berth unit --as-kubelet > /etc/systemd/system/" + systemd.KubeletDropIn,
		ValidArgs: slices.Sorted(maps.Keys(units)),
		RunE: func(cmd *cobra.Command, args []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			if asKubelet {
				if dash := cmd.ArgsLenAtDash(); dash > 0 || dash < 0 && len(args) > 0 {
					return commandline.Usagef("--as-kubelet is a unit of its own: name none beside it")
				}
				s := systemd.KubeletService(exe, args...)
				_, err = fmt.Fprint(cmd.OutOrStdout(), s.Standing())
				return err
			}
			text, err := unitText(exe, args, cmd.ArgsLenAtDash())
			if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asKubelet, "as-kubelet", asKubelet, "print kubelet.service for kubeadm, run by the agent")
	return cmd
}

// unitText is the unit that arguments ask for; those from the dash on are the service's.
func unitText(binary string, args []string, dash int) (string, error) {
	var of []string
	if dash < 0 {
		dash = len(args)
	}
	args, of = args[:dash], args[dash:]
	name := "agent"
	switch {
	case len(args) == 1:
		name = args[0]
	case len(args) > 1:
		return "", commandline.Usagef("one unit at a time: flags of the service come after --")
	}
	unit, ok := units[name]
	if !ok {
		return "", commandline.Usagef("there is no unit %q: it is one of %s", name, strings.Join(slices.Sorted(maps.Keys(units)), ", "))
	}
	if name == "slice" && len(of) > 0 {
		return "", commandline.Usagef("a slice runs nothing, and takes no flags")
	}
	return unit(binary, of), nil
}
