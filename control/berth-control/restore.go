package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/internal/commandline"
)

func newRestore(d *data) *cobra.Command {
	return &cobra.Command{
		Use: "restore FILE", Short: "Make the store anew from a snapshot, while no server runs", Args: cobra.ExactArgs(1),
		Long: `Make the store anew from a snapshot, while no server runs.

The snapshot is checked, and the new store is started once, before it takes the place of the old one. That is put aside
in the data directory as etcd.before-TIME, and is never removed. Whenever the command is killed, the next berth-control
serve has the old store or the new one; the command may be run again.

Revisions go on above all that were seen, so that clients list all objects again. Objects that were made since the
snapshot are gone: what runs for them is up to controllers and nodes. Secrets are read with the pki/encryption.yaml that
they were stored by, which no snapshot has in it.`,
		RunE: func(c *cobra.Command, args []string) error { return restore(c, *d, args[0]) },
	}
}

// ownOrNew refuses a directory that is somebody else's: a store in it would be no help to the cluster that was
// meant. The snapshot itself may lie in a new one.
func (d data) ownOrNew(snapshot string) error {
	entries, err := os.ReadDir(d.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at data directory: %w", err)
	}
	for _, own := range []string{d.authority(), d.etcd(), d.begun(), d.snapshots(), d.state(), d.member(), d.lock()} {
		if _, err := os.Stat(own); err == nil {
			return nil
		}
	}
	given, _ := filepath.Abs(snapshot)
	for _, e := range entries {
		path, _ := filepath.Abs(filepath.Join(d.dir, e.Name()))
		if e.Name() != "lost+found" && path != given {
			return commandline.Usagef("--data-dir %s: it has %s in it and nothing of a control plane; an empty one is wanted, or that of a cluster",
				d.dir, e.Name())
		}
	}
	return nil
}

func restore(c *cobra.Command, d data, file string) error {
	// What etcd says when it is stopped right after its start sounds like faults. A fault is an error of the command.
	log, err := newLog(etcd.LevelFatal.String())
	if err != nil {
		return err
	}
	if err := d.ownOrNew(file); err != nil {
		return err
	}
	unlock, err := d.take()
	if err != nil {
		return fmt.Errorf("restore etcd: nothing is changed while a server runs, stop it first: %w", err)
	}
	defer unlock()
	r, err := etcd.Restore(c.Context(), file, d.etcd(), d.run(), log)
	if err != nil {
		return err
	}
	out := c.OutOrStdout()
	fmt.Fprintf(out, "restored: %s has the objects of revision %d, and goes on with revision %d\n", d.etcd(), r.Snapshot, r.Revision)
	if r.Aside != "" {
		fmt.Fprintf(out, "aside: %s has the store that was there before; remove it when nobody needs it\n", r.Aside)
	}
	fmt.Fprintf(out, "next: berth-control serve --data-dir %s\n", d.dir)
	if _, err := os.Stat(d.encryption()); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(c.ErrOrStderr(), "warning: %s is not there, and Secrets of the snapshot can be read with it alone: put pki back from a copy "+
			"before you start serve, which makes another key in a directory that has none\n", d.encryption())
	}
	return nil
}
