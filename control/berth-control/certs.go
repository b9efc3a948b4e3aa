package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/control/pki"
)

func newCerts(d *data) *cobra.Command {
	c := &cobra.Command{Use: "certs", Short: "The cluster's certificates"}
	list := &cobra.Command{
		Use: "list", Short: "List the certificates and when they end", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tENDS\tLEFT\tAUTHORITY\tSUBJECT")
			var errs []error
			for _, e := range pki.List(d.pki()) {
				if e.Err != nil {
					errs = append(errs, fmt.Errorf("read %s: %w", e.File, e.Err))
					continue
				}
				days := int(time.Until(e.NotAfter).Hours() / 24)
				fmt.Fprintf(w, "%s\t%s\t%d days\t%s\t%s\n", e.Name, e.NotAfter.UTC().Format(time.RFC3339), days, e.Authority, e.Subject)
			}
			return errors.Join(append(errs, w.Flush())...)
		},
	}
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
