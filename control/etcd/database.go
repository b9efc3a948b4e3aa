package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// openLimit bounds the wait for a database that another process has open.
const openLimit = 5 * time.Second

// databaseIn is the file of the objects in a directory of etcd.
func databaseIn(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// readRevision is the revision that a database of etcd ends with; a file that is none is an error.
func readRevision(path string) (revision int64, err error) {
	// The database is mapped: where the file has less than it tells of, reading is a fault. That of this goroutine
	// becomes a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			revision, err = 0, fmt.Errorf("it is damaged: %v", r)
		}
	}()
	// bbolt would make a file that is not there, and wait for one that is empty.
	if st, err := os.Stat(path); err != nil {
		return 0, err
	} else if st.Size() == 0 {
		return 0, errors.New("it is empty")
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: openLimit})
	if err != nil {
		return 0, fmt.Errorf("it is no database of etcd: %w", err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for _, bucket := range [][]byte{schema.Key.Name(), schema.Meta.Name(), schema.Cluster.Name()} {
			if tx.Bucket(bucket) == nil {
				return fmt.Errorf("it is no database of etcd: it has no bucket %q", bucket)
			}
		}
		if last, _ := tx.Bucket(schema.Key.Name()).Cursor().Last(); last != nil {
			revision = mvcc.BytesToRev(last).Main
		}
		// What was deleted last may be gone from the keys, and a restored store begins at its compaction.
		for _, key := range [][]byte{schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName} {
			if v := tx.Bucket(schema.Meta.Name()).Get(key); len(v) >= 8 {
				revision = max(revision, int64(binary.BigEndian.Uint64(v)))
			}
		}
		return nil
	})
	return revision, err
}

// checkDatabase reads all of a database, of which the digest has been found right: it is what somebody has written, and
// that was whole.
func checkDatabase(path string) error {
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: openLimit})
	if err != nil {
		return fmt.Errorf("it is no database of etcd: %w", err)
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		var first error
		for err := range tx.Check() { // all of them: who sends waits
			if first == nil {
				first = fmt.Errorf("it is damaged: %w", err)
			}
		}
		return first
	})
}

// exists tells whether something has a path; what cannot be asked is an error.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// freeIn is how many bytes a file in a directory can still have.
func freeIn(dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("ask for room in %s: %w", dir, err)
	}
	return int64(disk.Bavail) * disk.Bsize, nil
}
