package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/control/etcd"
)

// snapshotFlags are the flags of serve that are of snapshots.
type snapshotFlags struct {
	interval time.Duration
	keep     int
	dir      string
}

const (
	intervalFlag, keepFlag, dirFlag = "snapshot-interval", "snapshot-keep", "snapshot-dir"
	// shortestInterval is as the names of snapshots have their time.
	shortestInterval = time.Second
)

func (f *snapshotFlags) add(p *pflag.FlagSet) {
	p.DurationVar(&f.interval, intervalFlag, 6*time.Hour, "how often a snapshot of etcd is written; 0: never")
	p.IntVar(&f.keep, keepFlag, 8, "how many of these snapshots are kept, the newest")
	p.StringVar(&f.dir, dirFlag, "", "directory of this cluster's snapshots alone; snapshots in the data directory, if empty")
}

// check finds what cannot be meant. Of an etcd of the user's own there are no snapshots here.
func (f *snapshotFlags) check(p *pflag.FlagSet, ownEtcd bool) error {
	for _, name := range []string{intervalFlag, keepFlag, dirFlag} {
		if ownEtcd && p.Changed(name) {
			return fmt.Errorf("read --%s: it is not for --etcd-servers, whose snapshots are up to who runs them", name)
		}
	}
	if f.interval != 0 && f.interval < shortestInterval {
		return fmt.Errorf("read --%s %s: it is 0, or at least %s", intervalFlag, f.interval, shortestInterval)
	}
	if f.keep < 1 {
		return errors.New("read --" + keepFlag + ": at least one is kept; --" + intervalFlag + "=0 writes none")
	}
	return nil
}

// in is the directory of snapshots.
func (f *snapshotFlags) in(d data) string { return cmp.Or(f.dir, d.snapshots()) }

// schedule tells also whether there is to be one.
func (f *snapshotFlags) schedule(d data, log *slog.Logger) (etcd.Schedule, bool) {
	return etcd.Schedule{Dir: f.in(d), Store: d.etcd(), Interval: f.interval, Keep: f.keep, Log: log}, f.interval > 0
}
