package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// revisionBump is what a restored store's revision is higher by than any that is known: no cluster writes as often
// between two snapshots. Clients that watch are told that what they have seen is gone, and list again.
const revisionBump = 1_000_000_000

// Restored tells what a restore has done.
type Restored struct {
	// Snapshot is the revision that the snapshot has, and Revision that with which the store goes on.
	Snapshot, Revision int64
	// Aside is where the store is that was there before; empty, if there was none.
	Aside string
}

// CheckSnapshot finds out whether a file is a whole snapshot of etcd, and its revision.
func CheckSnapshot(file string) (int64, error) {
	st, err := os.Stat(file)
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("it is no file")
	}
	if err == nil {
		err = checkSnapshot(file, st.Size())
	}
	var revision int64
	if err == nil {
		revision, err = readRevision(file)
	}
	if err == nil {
		err = readWhole(file)
	}
	if err == nil {
		err = checkDatabase(file)
	}
	if err != nil {
		return 0, fmt.Errorf("read snapshot %s: %w", file, err)
	}
	return revision, nil
}

// Restore makes the store in dir anew from a snapshot. Nobody may have the store open. Until the new one is whole, and
// has been started once, nothing changes; then it takes the place of the other, which is put aside. Who is killed
// meanwhile has one of the two: see [settle]. To members that are left of the cluster before it is none of theirs.
func Restore(ctx context.Context, file, dir, runDir string, log *slog.Logger) (Restored, error) {
	if err := settle(dir); err != nil {
		return Restored{}, err
	}
	var r Restored
	var err error
	if r.Snapshot, err = CheckSnapshot(file); err != nil {
		return Restored{}, err
	}
	bump, err := bumpOver(r.Snapshot, dir)
	if err != nil {
		return Restored{}, err
	}
	made := restoring(dir)
	if err := fits(file, filepath.Dir(dir)); err != nil {
		return Restored{}, err
	}
	peer := peerURL()
	r.Revision, err = build(ctx, snapshot.RestoreConfig{
		SnapshotPath: file, OutputDataDir: made, Name: FirstName, PeerURLs: []string{peer.String()}, InitialCluster: initialCluster(FirstName, peer),
		InitialClusterToken: rand.Text(), RevisionBump: bump, MarkCompacted: true,
	}, runDir, log)
	if err != nil {
		_ = os.RemoveAll(made) // the next one begins with it
		return Restored{}, fmt.Errorf("restore etcd: %w", err)
	}
	r.Aside, err = swap(dir, time.Now())
	return r, err
}

// bumpOver is what has to be added to a snapshot's revision for it to be higher than those of all stores that are here:
// the one that is replaced, and those that were. One that cannot be read may be a bump ahead of the others.
func bumpOver(revision int64, dir string) (uint64, error) {
	stores, err := asides(dir)
	if err != nil {
		return 0, fmt.Errorf("look for stores: %w", err)
	}
	highest, bump := revision, int64(revisionBump)
	for _, store := range append(stores, dir) {
		r, err := readRevision(databaseIn(store))
		if err == nil {
			highest = max(highest, r)
		} else if !errors.Is(err, fs.ErrNotExist) {
			bump += revisionBump
		}
	}
	if highest > math.MaxInt64/2 {
		return 0, fmt.Errorf("restore etcd: revision %d is as high as no cluster's", highest)
	}
	return uint64(highest - revision + bump), nil
}

// fits refuses a snapshot for which there is no room beside the store, with what etcd writes when it starts.
func fits(file, beside string) error {
	st, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	free, err := freeIn(beside)
	if err != nil {
		return err
	}
	if need := st.Size() + spare; free < need {
		return fmt.Errorf("restore etcd: it takes %d MB in %s, and %d MB are free: %w", need>>20, beside, free>>20, unix.ENOSPC)
	}
	return nil
}

// build makes a store, starts it once, and has all of it on the disk.
func build(ctx context.Context, c snapshot.RestoreConfig, runDir string, log *slog.Logger) (int64, error) {
	if err := write(c, log); err != nil {
		return 0, err
	}
	revision, err := try(ctx, c.OutputDataDir, runDir, log)
	if err != nil {
		return 0, err
	}
	return revision, syncAll(c.OutputDataDir)
}

// write makes a store by the library, which panics where the disk is full.
func write(c snapshot.RestoreConfig, log *slog.Logger) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("write store: %v", r)
		}
	}()
	fatal := zap.WithFatalHook(zapcore.WriteThenPanic) // which would end the process without a word to the caller
	if err := snapshot.NewV3(newZap(log).WithOptions(fatal)).Restore(c); err != nil {
		return fmt.Errorf("write store: %w", err)
	}
	return nil
}

// try starts a store as serve will: one that this version cannot read never takes the place of another.
func try(ctx context.Context, dir, runDir string, log *slog.Logger) (int64, error) {
	m, err := Start(ctx, Options{Dir: dir, RunDir: runDir, Log: log})
	if err != nil {
		return 0, err
	}
	defer m.Stop()
	client, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, log)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	st, err := client.Status(ctx, m.Endpoint())
	if err != nil {
		return 0, fmt.Errorf("ask restored store: %w", err)
	}
	return st.Header.Revision, nil
}

// syncAll has a directory and what is in it outlive a loss of power.
func syncAll(dir string) error {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() && !e.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(dir))
	}
	if err != nil {
		return fmt.Errorf("sync restored store: %w", err)
	}
	return nil
}
