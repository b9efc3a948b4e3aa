package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/systemd"
)

func newUnit(d *data) *cobra.Command {
	return &cobra.Command{
		Use: "unit [-- SERVE-FLAG...]", Short: "Print a systemd unit that serves",
		Long: `Print a unit of systemd that serves, with the reason of each line (` + systemd.ControlName + `). It runs as the user
` + systemd.ControlUser + `, who is to be there, and may do nothing but serve and write its data directory. What follows -- are
flags of berth-control serve; without any they are in ` + systemd.ControlEnvironment + `. The package has the same unit.`,
		Example: "  berth-control unit > /etc/systemd/system/" + systemd.ControlName + "\n" +
			"  berth-control unit -- --peer-address 192.0.2.1 --tls-san api.example.org",
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := serveArgs(c, args); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			dir, err := filepath.Abs(d.dir)
			if err != nil {
				return err
			}
			s := systemd.ControlService{Binary: exe, Data: dir, Args: args}
			_, err = fmt.Fprint(c.OutOrStdout(), s.Unit())
			return err
		},
	}
}

// serveArgs reads flags of serve that follow a dash, as serve does.
func serveArgs(c *cobra.Command, args []string) (*serveFlags, error) {
	if dash := c.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
		return nil, commandline.Usagef("flags of berth-control serve come after --")
	}
	f := &serveFlags{}
	serve := newServeOf(&data{}, f)
	if err := serve.ParseFlags(args); err != nil {
		return nil, commandline.Usagef("read flags of berth-control serve: %w", err)
	}
	if len(serve.Flags().Args()) > 0 {
		return nil, commandline.Usagef("read flags of berth-control serve: %q is none", serve.Flags().Args())
	}
	return f, nil
}
