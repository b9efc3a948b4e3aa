package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/internal/commandline"
)

// volumeCommands are those about volumes of CSI drivers.
type volumeCommands struct{ volumes func() client.Volumes }

func volumeCommand(c *commands) *cobra.Command {
	v := &volumeCommands{func() client.Volumes { return client.Volumes{Client: c.client()} }}
	var as printed
	cmd := &cobra.Command{
		Use: "volumes", Short: "Show the volumes of CSI drivers, and take back or delete those whose claim is gone",
		Long: `Show the CSI drivers of the node, what was made for claims, and which pods have which volumes. A volume that was made for a claim is
deleted some time after its claim is gone (--volume-delete-grace of berth agent). Until then it comes back with the claim.`,
		Example: "  berth volumes\n  berth volumes drivers\n  berth volumes check\n  berth volumes restore default/data",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := v.volumes().State(cmd.Context())
			if err != nil {
				return err
			}
			return as.print(cmd, s, func(w io.Writer) { tableVolumes(w, s) })
		},
	}
	as.AddFlag(cmd)
	cmd.AddCommand(v.check(), v.decide("restore", true, "Have the volume of a claim that is gone stay, for the claim to be put back"),
		v.decide("delete", false, "Delete the volume of a claim that is gone now, with its data"), v.abandon(), v.drivers())
	return cmd
}

func (v *volumeCommands) check() *cobra.Command {
	var as printed
	var undo bool
	cmd := &cobra.Command{
		Use: "check", Short: "Show mounts that nobody knows of, and what of volumes is half done",
		Long: `Show mounts that nobody knows of, and what of volumes is half done. It fails when there is anything. With --undo the drivers of mounts
that nobody knows of are asked to take them away; what is in the volumes stays.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ask := v.volumes().Check
			if undo {
				ask = v.volumes().Undo
			}
			found, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			err = as.print(cmd, struct {
				Findings []api.VolumeFinding `json:"findings"`
			}{found}, func(w io.Writer) { tableFindings(w, found) })
			left := slices.ContainsFunc(found, func(f api.VolumeFinding) bool { return !f.Undone })
			switch {
			case err == nil && left && undo:
				err = errors.New("not all that nobody knows of was taken away")
			case err == nil && left:
				err = errors.New("not all is as the records say")
			}
			return err
		},
	}
	as.AddFlag(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "have drivers take away mounts that nobody knows of")
	return cmd
}

func (v *volumeCommands) drivers() *cobra.Command {
	var as printed
	cmd := &cobra.Command{
		Use: "drivers", Short: "Show the CSI drivers of the node, and what they say of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := v.volumes().State(cmd.Context())
			if err != nil {
				return err
			}
			return as.print(cmd, struct {
				Drivers []api.VolumeDriver `json:"drivers"`
			}{s.Drivers}, func(w io.Writer) { tableDrivers(w, s.Drivers) })
		},
	}
	as.AddFlag(cmd)
	return cmd
}

func (v *volumeCommands) abandon() *cobra.Command {
	return &cobra.Command{
		Use: "abandon VOLUME", Short: "Have a pod that goes not wait for the driver of a volume",
		Long: `Have a pod that goes not wait for the driver of a volume, such as one that is not on the node any more. What is mounted is unmounted,
and nothing of the volume is deleted; a device or an attachment of it, which only the driver knows of, stays. It counts for the next pod
that tries to go. VOLUME is a name as "berth volumes" shows it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := v.volumes().State(cmd.Context())
			if err != nil {
				return err
			}
			one, err := mountNamed(s, args[0])
			if err != nil {
				return err
			}
			if err := v.volumes().Abandon(cmd.Context(), one.Driver, one.Handle); err != nil {
				return err
			}
			_, err = fmt.Fprintf(commandline.Visible(cmd.OutOrStdout()), "volume %s of %s is abandoned by the next pod that goes\n", one.Name, one.Driver)
			return err
		},
	}
}

// mountNamed is the one volume on the node of that name or handle.
func mountNamed(s *api.VolumeState, name string) (*api.VolumeMount, error) {
	var found *api.VolumeMount
	for i := range s.Mounts {
		one := &s.Mounts[i]
		if one.Name != name && one.Handle != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("volume %s: several have the name: say the handle (berth volumes -o json)", name)
		}
		found = one
	}
	if found == nil {
		return nil, &client.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("volume %s: it is not on the node", name)}
	}
	return found, nil
}

func (v *volumeCommands) decide(use string, keep bool, short string) *cobra.Command {
	var of target
	var snapshot, group bool
	cmd := &cobra.Command{
		Use: use + " CLAIM", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := of.key(args[0])
			if err != nil {
				return err
			}
			kind := "volume"
			switch {
			case snapshot:
				kind = "snapshot"
			case group:
				kind = "groupsnapshot"
			}
			if err := v.volumes().Decide(cmd.Context(), kind, key.Namespace, key.Name, keep); err != nil {
				return err
			}
			what := "is being deleted"
			if keep {
				what = "stays; put its manifest back to use it again"
			}
			_, err = fmt.Fprintf(commandline.Visible(cmd.OutOrStdout()), "%s %s %s\n", kind, key, what)
			return err
		},
	}
	of.addFlags(cmd)
	cmd.Flags().BoolVar(&snapshot, "snapshot", false, "CLAIM is the name of a VolumeSnapshot")
	cmd.Flags().BoolVar(&group, "group-snapshot", false, "CLAIM is the name of a VolumeGroupSnapshot")
	cmd.MarkFlagsMutuallyExclusive("snapshot", "group-snapshot")
	return cmd
}
