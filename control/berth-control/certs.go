package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/commandline"
)

func newCerts(d *data) *cobra.Command {
	c := &cobra.Command{Use: "certs", Short: "The cluster's certificates"}
	form := &commandline.Output{}
	list := &cobra.Command{
		Use: "list", Short: "List the certificates and when they end", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := os.Stat(d.pki()); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("list certificates: there are none in %s; berth-control serve makes them", d.pki())
			}
			shown, errs := certsShown(pki.List(d.pki()), time.Now())
			return errors.Join(append(errs, form.Print(c.OutOrStdout(), shown, shown.table))...)
		},
	}
	form.AddFlag(list)
	renew := &cobra.Command{
		Use: "renew", Short: "Make all certificates again but the authorities; a server that runs takes them at once", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog("info")
			if err != nil {
				return err
			}
			if err := d.become(); err != nil {
				return err
			}
			hosts, err := pki.Hosts(d.pki())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("renew certificates: there are none in %s; berth-control serve makes them", d.pki())
			} else if err != nil {
				return err
			}
			s, err := pki.Open(d.pki(), pki.Options{Hosts: hosts, Log: log})
			if err != nil {
				return err
			}
			made, err := s.Renew(true)
			if err != nil {
				return err
			}
			if state, err := readServing(*d); err == nil {
				if err := writeAdmin(*d, s, state); err != nil {
					return err
				}
			}
			fmt.Fprintln(c.OutOrStdout(), "renewed: "+strings.Join(made, ", "))
			return nil
		},
	}
	c.AddCommand(list, renew, newRotate(d))
	return c
}
