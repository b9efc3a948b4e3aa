package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/repack"
	"github.com/berth-node/berth/install/upgrade"
)

// withoutTerminal has this process go on when its terminal is gone, as with the connection that it came over, or who
// reads what it prints: an upgrade that ends between two steps leaves the node without an agent. The signals are taken,
// not ignored: programs that are started would ignore them, too.
func withoutTerminal() (end func()) {
	taken := make(chan os.Signal, 1)
	signal.Notify(taken, syscall.SIGHUP, syscall.SIGPIPE)
	return func() { signal.Stop(taken) }
}

// cutOff says which upgrade of what is installed on this machine was cut off; "": none.
func cutOff() (string, error) {
	for _, l := range []install.Layout{install.Local(), install.Packaged()} {
		if f, err := upgrade.CutOff(filepath.Join(l.Libexec, upgradesDir)); f != nil || err != nil {
			if errors.Is(err, fs.ErrPermission) {
				continue // it is root's to know
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("one from %s to %s was cut off while it was %s", cmp.Or(f.From, "what was there"), cmp.Or(f.To, "another version"), f.State), nil
		}
	}
	return "", nil
}

// forgetSuperseded forgets an upgrade that was cut off when another version has been installed since, by a packager
// where one has installed berth.
func forgetSuperseded(ctx context.Context, all *upgrade.Upgrades, byPackager, dryRun bool, out io.Writer) error {
	cut, err := all.UnderWay()
	if err != nil || cut == nil {
		return err
	}
	version := ""
	if byPackager {
		if p := repack.Find(ctx, "/", packageName); p != nil {
			version = p.Version
		}
	}
	if over, err := cut.Superseded(version); err != nil || !over {
		return err
	}
	fmt.Fprintf(out, "The upgrade from %s to %s was cut off, and another version has been installed since: it is forgotten.\n",
		cmp.Or(cut.From, "what was there"), cmp.Or(cut.To, "another version"))
	if dryRun {
		return nil
	}
	return all.Abandon()
}
