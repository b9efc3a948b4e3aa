package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// CSI is which CSI drivers the node has.
type CSI struct {
	Drivers []string      // sockets of those that no registrar tells of
	Grace   time.Duration // between the removal of a claim and that of the volume that was made for it
	Local   LocalCSI
}

// LocalCSI is the agent's own driver, for storage of this machine.
type LocalCSI struct {
	On                    bool
	Overcommit            float64
	VolumeGroup, ThinPool string
}

// AddFlags adds the flags to fs.
func (c *LocalCSI) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.On, "csi-local", c.On,
		"have the CSI driver local.csi.berth.node in the agent: volumes on the disks of this machine, in csi-local of --root-dir. It starts when "+
			"something asks for it, and is off with --kubeconfig")
	fs.Float64Var(&c.Overcommit, "csi-local-overcommit", c.Overcommit,
		"how many times its space may be promised to volumes; 1: nothing is promised twice")
	fs.StringVar(&c.VolumeGroup, "csi-local-volume-group", c.VolumeGroup, "volume group of LVM for its volumes of the type lvm (empty: none)")
	fs.StringVar(&c.ThinPool, "csi-local-thin-pool", c.ThinPool, "thin pool in the volume group")
}

// AddFlags adds the flags to fs.
func (c *CSI) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Drivers, "csi-drivers", c.Drivers,
		"sockets of CSI drivers that have no registrar, such as /run/disk/csi.sock; those with one are found by it in "+
			"plugins_registry of --kubelet-dir")
	fs.DurationVar(&c.Grace, "volume-delete-grace", c.Grace,
		"how long the claim of a volume that was made for it has to be gone before the volume is deleted, if its StorageClass says "+
			"so; until then it comes back with the claim. Only time in which the agent runs counts")
	c.Local.AddFlags(fs)
}

// Complete says what is wrong with the settings.
func (c *CSI) Complete() error {
	for _, s := range c.Drivers {
		if !filepath.IsAbs(strings.TrimPrefix(s, "unix://")) {
			return fmt.Errorf("--csi-drivers %q: must be the absolute path of a socket, or unix:// with it", s)
		}
	}
	if c.Grace < 0 {
		return fmt.Errorf("--volume-delete-grace %s: must not be below 0", c.Grace)
	}
	if c.Local.Overcommit < 1 || c.Local.Overcommit > 1000 {
		return fmt.Errorf("--csi-local-overcommit %v: must be from 1 to 1000", c.Local.Overcommit)
	}
	return nil
}
