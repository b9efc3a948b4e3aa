//go:build packaging

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/install"
)

// tools are commands of who makes packages. What makes the manual is in no program that is packaged.
func tools() []*cobra.Command { return []*cobra.Command{newLayout()} }

// newLayout lays out the files of a package in a tree.
func newLayout() *cobra.Command {
	var destdir, from string
	c := &cobra.Command{
		Use: "layout --destdir DIR --from PROGRAM", Short: "Lay out the files of a package", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			docs, err := install.Describe(c.Root())
			if err != nil {
				return err
			}
			in := &install.Installation{Root: destdir, Layout: install.Packaged(), Untracked: true}
			files := in.Layout.ControlFiles(from, docs)
			if err := in.Apply(files); err != nil {
				return err
			}
			for _, f := range files {
				fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", f.Path, f.What)
			}
			return nil
		},
	}
	c.Flags().StringVar(&destdir, "destdir", "", "directory of the tree")
	c.Flags().StringVar(&from, "from", "", "the program")
	for _, name := range []string{"destdir", "from"} {
		_ = c.MarkFlagRequired(name) // it is a flag
	}
	return c
}
