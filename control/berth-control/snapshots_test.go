package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestSnapshotFlags has what cannot be meant refused before anything starts, and snapshots written by default.
func TestSnapshotFlags(t *testing.T) {
	for _, c := range []struct {
		name, args string
		ownEtcd    bool
		refused    string
		on         bool
	}{
		{name: "none", on: true},
		{name: "off", args: "--snapshot-interval=0"},
		{name: "all", args: "--snapshot-interval=1m --snapshot-keep=1 --snapshot-dir=/a", on: true},
		{name: "an etcd of one's own", ownEtcd: true, on: true},
		{name: "too often", args: "--snapshot-interval=10ms", refused: "--snapshot-interval 10ms"},
		{name: "before now", args: "--snapshot-interval=-1h", refused: "--snapshot-interval"},
		{name: "none kept", args: "--snapshot-keep=0", refused: "--snapshot-keep"},
		{name: "interval of an etcd of one's own", args: "--snapshot-interval=1h", ownEtcd: true, refused: "--etcd-servers"},
		{name: "directory of an etcd of one's own", args: "--snapshot-dir=/a", ownEtcd: true, refused: "--etcd-servers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := &snapshotFlags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
			f.add(p)
			if err := p.Parse(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			err := f.check(p, c.ownEtcd)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("refused with %v", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			if _, on := f.schedule(data{"/d"}, slog.New(slog.DiscardHandler)); on != c.on {
				t.Errorf("on: %t", on)
			}
		})
	}
	f, p := &snapshotFlags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(p)
	if s, _ := f.schedule(data{"/d"}, nil); s.Dir != "/d/snapshots" || s.Interval != 6*time.Hour || s.Keep != 8 || s.Store != "/d/etcd" {
		t.Errorf("by default: %+v", s)
	}
}

// TestRestoreWhileItServes has the command keep its hands off a directory that somebody has.
func TestRestoreWhileItServes(t *testing.T) {
	dir := t.TempDir()
	unlock, err := data{dir}.take()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	c := newCommand()
	c.SetArgs([]string{"etcd", "restore", "nothing.db", "--data-dir", dir})
	c.SetOut(io.Discard)
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("restored: %v", err)
	}
}
