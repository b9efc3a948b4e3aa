// Package local is the driver local.csi.berth.node: volumes on the disks of this machine, as directories, images with
// loop devices, or logical volumes. It speaks CSI on a unix socket, and serves any kubelet.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/atomicfile"
)

// Name is what the driver is called.
const Name = "local.csi.berth.node"

// TopologyKey is the segment of topology whose value is the node that a volume is on.
const TopologyKey = "topology." + Name + "/node"

// ErrRunning says that another process has the data directory.
var ErrRunning = errors.New("another driver runs on the data directory")

// Config is what a [Driver] works with.
type Config struct {
	DataDir string // made unless it is there
	NodeID  string
	Version string
	// Overcommit is how many times the space that there is may be promised; 1: nothing is promised twice.
	Overcommit float64
	// MaxVolumes is how many volumes the node takes at once; 0: as many as are asked for.
	MaxVolumes int64
	// VolumeGroup is the volume group of LVM for volumes of the type lvm, and ThinPool the pool in it; "": there are
	// none.
	VolumeGroup, ThinPool string
	Log                   *slog.Logger

	step steps
}

// Driver is the driver on one data directory. Each of its parts has what it keeps to itself, and uses those above it
// only.
type Driver struct {
	cfg       Config
	lock      *os.File
	records   *records
	backends  *backends
	place     place
	space     *space
	freezer   *freezer
	maker     *maker
	snapshots *snapshots
	stager    *stager
	publisher *publisher
	inlines   *inlines
	meter     *meter
}

// Open takes the data directory, and finishes or undoes what was cut off when the last driver on it was killed. What
// fails of that is logged and tried again when it is asked for.
func Open(ctx context.Context, c Config) (*Driver, error) {
	if len(c.NodeID) > maxNodeID || !nodeID.MatchString(c.NodeID) {
		return nil, fmt.Errorf("node ID %.80q: must be the name of a node, at most 63 letters, digits, '-', '_' and '.'", c.NodeID)
	}
	if c.Overcommit < 1 || c.Overcommit > 1000 {
		return nil, fmt.Errorf("overcommit %v: must be from 1 to 1000", c.Overcommit)
	}
	if c.MaxVolumes < 0 {
		return nil, fmt.Errorf("max volumes %d: must not be negative", c.MaxVolumes)
	}
	if err := atomicfile.MkdirSynced(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	var err error
	if c.DataDir, err = resolve(c.DataDir); err != nil {
		return nil, err
	}
	d := &Driver{cfg: c}
	if d.backends, err = newBackends(&c); err != nil {
		return nil, err
	}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.assemble()
	(&recovery{d.records, d.backends, d.freezer, d.maker, d.snapshots, d.stager, c.Log}).recover(ctx)
	return d, nil
}

// resolve is a data directory as the kernel names it, which has no links in it.
func resolve(dir string) (string, error) {
	path, err := filepath.EvalSymlinks(dir)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find data directory: %w", err)
	}
	return path, nil
}

// open takes the data directory, and reads its records.
func (d *Driver) open(ctx context.Context) (err error) {
	for _, dir := range []string{d.backends.dirs.Dir, d.backends.images.Dir, inlineDir(d.cfg.DataDir)} {
		if err := atomicfile.MkdirSynced(dir, 0o700); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
	}
	// It is not opened for writing: on a disk that has become read-only pods still have to let their volumes go.
	if d.lock, err = os.OpenFile(filepath.Join(d.cfg.DataDir, "lock"), os.O_RDONLY|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrRunning
		}
		return fmt.Errorf("lock %s: %w", d.cfg.DataDir, err)
	}
	if d.records, err = openRecords(d.cfg.DataDir, d.cfg.step, d.cfg.Log); err != nil {
		return err
	}
	return d.findLost(ctx)
}

// findLost has the ID be taken of what is stored without a record. A record is there before what it tells of, and goes
// after it: this one was lost, and the data is somebody's.
func (d *Driver) findLost(ctx context.Context) error {
	stored := map[string]string{} // by ID where it is
	for _, dir := range []string{d.backends.dirs.Dir, d.backends.images.Dir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("list volumes: %w", err)
		}
		for _, e := range entries {
			stored[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	if d.backends.lvm != nil {
		ids, err := d.backends.lvm.IDs(ctx)
		if err != nil { // those of other types are to be had all the same
			d.cfg.Log.Error("it is not known whether there are logical volumes without a record", "error", err)
		}
		for _, id := range ids {
			stored[id] = "/dev/" + d.cfg.VolumeGroup + "/" + id
		}
	}
	for id, at := range stored {
		get, miss := d.records.volumes.Has, d.records.volumes.Miss
		if strings.HasPrefix(id, snapshotKind+"-") {
			get, miss = d.records.snaps.Has, d.records.snaps.Miss
		}
		if !record.IsID(id) || get(id) {
			continue
		}
		miss(id, "it is lost, and its data is "+at)
		d.cfg.Log.Error("a record is lost: its data stays as it is, and its name stays taken", "data", at)
	}
	return nil
}

// assemble gives each part those that it uses.
func (d *Driver) assemble() {
	c := d.cfg
	d.place = place{node: c.NodeID}
	d.space = &space{records: d.records, backends: d.backends, overcommit: c.Overcommit}
	d.freezer = &freezer{records: d.records, backends: d.backends, log: c.Log}
	d.maker = &maker{records: d.records, backends: d.backends, space: d.space, freezer: d.freezer, log: c.Log}
	d.snapshots = &snapshots{records: d.records, backends: d.backends, space: d.space, freezer: d.freezer, place: d.place, log: c.Log}
	d.stager = &stager{records: d.records, backends: d.backends, freezer: d.freezer, most: c.MaxVolumes, log: c.Log}
	d.publisher = &publisher{records: d.records, backends: d.backends, dir: c.DataDir}
	d.inlines = &inlines{
		records: d.records, backends: d.backends, maker: d.maker, stager: d.stager, publisher: d.publisher, dir: inlineDir(c.DataDir),
	}
	d.meter = &meter{records: d.records, backends: d.backends}
}

// Close lets go of the data directory. What is mounted stays.
func (d *Driver) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// inlineDir is where volumes are staged that belong to one pod.
func inlineDir(dataDir string) string { return filepath.Join(dataDir, "inline") }

// longest bounds what a driver does by itself for one volume.
const longest = 10 * time.Minute
