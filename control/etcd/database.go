package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// leastRevision is how long a key of an object is: two numbers with a letter between, and a mark of what was deleted.
const leastRevision = 17

// openLimit bounds the wait for a database that another process has open.
const openLimit = 5 * time.Second

// databaseIn is the file of the objects in a directory of etcd.
func databaseIn(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// withDatabase calls do with a database that may be damaged. The library panics where a page is not what it is to be,
// and a database is mapped: where the file has less than it tells of, reading is a fault. Both are errors in this
// goroutine, and end the process in any other.
func withDatabase(path string, do func(*bbolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is damaged: %v", r)
		}
	}()
	// bbolt would make a file that is not there, and wait for one that is empty.
	if st, err := os.Stat(path); err != nil {
		return err
	} else if st.Size() == 0 {
		return errors.New("it is empty")
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: openLimit})
	if err != nil {
		return fmt.Errorf("it is no database of etcd: %w", err)
	}
	defer db.Close()
	return db.View(do)
}

// readRevision is the revision that a database of etcd ends with; a file that is none is an error.
func readRevision(path string) (revision int64, err error) {
	err = withDatabase(path, func(tx *bbolt.Tx) error {
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

// readWhole reads all that a database has, as etcd does at its start. One that is new has nothing yet.
func readWhole(path string) error {
	return withDatabase(path, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			var before []byte
			keys := bytes.Equal(bucket, schema.Key.Name())
			return b.ForEach(func(k, v []byte) error {
				if before != nil && bytes.Compare(before, k) >= 0 {
					return fmt.Errorf("it is damaged: keys of %q are not in their order", bucket)
				}
				before = k
				if keys && !whole(k, v) {
					return fmt.Errorf("it is damaged: what it has at key %x is no object", k)
				}
				return nil
			})
		})
	})
}

// whole says whether a key is a revision, and its value a message of fields.
func whole(key, value []byte) bool {
	if len(key) < leastRevision {
		return false
	}
	for len(value) > 0 {
		_, _, n := protowire.ConsumeField(value)
		if n < 0 {
			return false
		}
		value = value[n:]
	}
	return true
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
