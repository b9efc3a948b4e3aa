package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
)

// A directory without a log is that of a store that has never begun, or of one that is lost: its disk is not mounted,
// or is another one, or a check of the file system has taken it away. etcd takes both for the first, and begins with
// nothing. So a store that serves is on record beside its directory, before anybody has written to it.

// begunText is what the record says to who finds it.
const begunText = "The objects of a cluster are in etcd beside this file. While it is here, berth-control serve begins with none only if it is told to.\n"

// logIn is the directory of the log in a directory of etcd.
func logIn(dir string) string { return filepath.Join(dir, "member", "wal") }

// hasLog says whether a directory has a member's log, by what etcd itself goes by.
func hasLog(dir string) (bool, error) {
	entries, err := os.ReadDir(logIn(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for the log: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".wal") {
			return true, nil
		}
	}
	return false, nil
}

// lost refuses to begin with nothing where there was a store. A member that others have let in gets all from them. What
// is left of it, or of a start that was cut off before anything was stored, is put aside.
func (o Options) lost() error {
	has, err := hasLog(o.Dir)
	if err != nil || has {
		return err
	}
	if len(o.Join) == 0 {
		tells, err := o.record()
		if err != nil {
			return err
		}
		if tells != "" {
			return fmt.Errorf("there is no log in %s, and a cluster's objects were there, as %s tells: is its disk mounted? Or %s; "+
				"a new cluster with nothing in it begins when %s is moved away", logIn(o.Dir), tells, o.wayBack(), tells)
		}
	}
	left := filepath.Join(o.Dir, "member")
	if there, err := exists(left); err != nil || !there {
		return err
	}
	to, err := freeName(left, time.Now())
	if err == nil {
		err = errors.Join(os.Rename(left, to), atomicfile.SyncDir(o.Dir))
	}
	if err != nil {
		return fmt.Errorf("put aside what is left of a store: %w", err)
	}
	return nil
}

// record is what tells of a store that there was, or nothing: the record of it, a copy of it, or what is left of it. A
// store that has only begun to be made has a database, too, with nothing in it.
func (o Options) record() (string, error) {
	if o.Begun != "" {
		was, err := exists(o.Begun)
		if err != nil {
			return "", fmt.Errorf("look for the record of the store: %w", err)
		}
		if was {
			return o.Begun, nil
		}
	}
	if revision, err := readRevision(databaseIn(o.Dir)); err == nil && revision > emptyRevision {
		return databaseIn(o.Dir), nil
	}
	if newest(o.Snapshots) != "" {
		return o.Snapshots, nil
	}
	return "", nil
}

// remember records a store that is about to serve.
func (o Options) remember() error {
	if o.Begun == "" {
		return nil
	}
	return Remember(o.Begun)
}

// Remember writes the record of a store, if it is not there.
func Remember(begun string) error {
	if was, err := exists(begun); was || err != nil {
		return err
	}
	if err := atomicfile.WriteSynced(begun, []byte(begunText), 0o600); err != nil {
		return fmt.Errorf("record that the store has begun: %w", err)
	}
	return nil
}

// checkDatabase reads the database once before etcd does, which ends the process without a word of the file where that
// is damaged. One that is not there is made from the log. What was to be a smaller one, when who made it was killed, is
// as large as that, and etcd removes it only where it has snapshots of its log.
func (o Options) checkDatabase() error {
	path := databaseIn(o.Dir)
	halves, err := filepath.Glob(path + ".tmp.*")
	if err != nil {
		return err
	}
	for _, half := range halves {
		if err := os.Remove(half); err != nil {
			return fmt.Errorf("remove what was to be a database: %w", err)
		}
	}
	for _, dir := range []string{logIn(o.Dir), filepath.Dir(path)} {
		if err := onlyFiles(dir); err != nil {
			return fmt.Errorf("%w: %s", err, o.wayBack())
		}
	}
	if st, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() == 0 {
		return nil
	}
	if err := readWhole(path); err != nil {
		return fmt.Errorf("read database %s: %w: %s", path, err, o.wayBack())
	}
	return nil
}

// onlyFiles refuses a directory of etcd with something else in it than files: to open a pipe takes for ever.
func onlyFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for the files of etcd: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
			return fmt.Errorf("read %s: it is no file", path)
		}
	}
	return nil
}

// wayBack says what to do about a store that is damaged.
func (o Options) wayBack() string {
	way := "put a copy of " + o.Dir + " back, or make the store anew from a snapshot: berth-control etcd restore " +
		cmp.Or(newest(o.Snapshots), "SNAPSHOT")
	if o.Peering != nil {
		way += "; where other members run, remove the data directory and join again"
	}
	return way
}

// newest is the newest copy in a directory, or nothing.
func newest(dir string) string {
	if dir == "" {
		return ""
	}
	all, err := Schedule{Dir: dir}.copies()
	if err != nil || len(all) == 0 {
		return ""
	}
	return filepath.Join(dir, order(all, time.Now())[len(all)-1].name())
}
