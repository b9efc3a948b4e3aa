package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/csi/local"
	"github.com/berth-node/berth/internal/commandline"
)

func csiLocalCommand(version string) *cobra.Command {
	logging := config.Default().Logging
	c := local.Config{DataDir: "/var/lib/berth-csi", Overcommit: 1, ThinPool: "berth", Version: version}
	endpoint := "unix:///var/lib/kubelet/plugins/" + local.Name + "/csi.sock"
	registration := ""
	cmd := &cobra.Command{
		Use: "csi-local", Short: "Run the CSI driver for storage of this machine",
		Long: "Run the CSI driver " + local.Name + ", until SIGTERM or SIGINT: volumes on the disks of this machine, as directories, images with loop devices, or thin " +
			"logical volumes. Any kubelet and any CSI sidecar can use it. Volumes stay mounted when it ends, however it ends; the next one on the same data directory goes on.",
		Example: "  berth csi-local --node-id $(hostname)\n  berth csi-local --endpoint unix:///run/csi.sock --data-dir /data/csi --node-id worker-1 --volume-group vg0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("the driver mounts, and must run as root")
			}
			if c.NodeID == "" {
				return commandline.Usage(errors.New("--node-id must be given: the name of the node, as the cluster has it"))
			}
			collectAsGo()
			c.Log = logging.Logger(os.Stderr)
			d, err := local.Open(cmd.Context(), c)
			if err != nil {
				return err
			}
			return errors.Join(d.Run(cmd.Context(), endpoint, registration), d.Close())
		},
	}
	f := cmd.Flags()
	f.StringVar(&endpoint, "endpoint", endpoint, "unix socket that the driver is reached by")
	f.StringVar(&registration, "registration-dir", registration, "directory in which kubelet looks for plugins, such as /var/lib/kubelet/plugins_registry: the driver registers itself there (default it does not)")
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory for the volumes and what is known of them")
	f.StringVar(&c.NodeID, "node-id", "", "name of this node")
	f.Float64Var(&c.Overcommit, "overcommit", c.Overcommit, "how many times the space that there is may be promised to volumes; 1: nothing is promised twice")
	f.Int64Var(&c.MaxVolumes, "max-volumes", 0, "how many volumes the node takes at once; 0: as many as are asked for")
	f.StringVar(&c.VolumeGroup, "volume-group", "", "volume group of LVM for volumes of the type lvm (default none)")
	f.StringVar(&c.ThinPool, "thin-pool", c.ThinPool, "thin pool in the volume group")
	logging.AddFlags(f)
	return cmd
}
