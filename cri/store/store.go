// Package store keeps the runtime's records: typed tables in one bbolt file, each with a copy in memory.
//
// A record is written before the act it describes. Writes reach the page cache at once, so a kill -9 of the process loses
// nothing; they reach the disk shortly after (or on [DB.Sync], which the end of a pull calls), because an fsync on the path of
// a pod's start would cost more than the start. A power cut can therefore tear the file. Then it is set aside and a new one
// begun: after a boot nothing it described runs any more, and layers without a record are unpacked again.
package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// syncDelay is how long a write may stay in the page cache only. It is as long as a journal's own interval: while a journal is written,
// whoever makes a file or a directory on its file system may have to wait for it, and pods that start do little else.
const syncDelay = 5 * time.Second

// ErrLocked says that another process has the file open.
var ErrLocked = errors.New("in use by another process")

// DB is one open file of records. It is safe for concurrent use.
type DB struct {
	bolt *bolt.DB
	log  *slog.Logger

	dirty chan struct{}
	done  chan struct{}
	wait  sync.WaitGroup
}

// Open opens or creates the file at path. It fails with [ErrLocked] when another process has it, and sets a file that cannot
// be read aside as path + ".damaged".
func Open(path string, log *slog.Logger) (*DB, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b, err := open(path)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: %w", path, ErrLocked)
	}
	if err != nil {
		if _, statErr := os.Stat(path); statErr != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		log.Warn("records cannot be read and are set aside", "file", path, "aside", path+".damaged", "error", err)
		if err := os.Rename(path, path+".damaged"); err != nil {
			return nil, fmt.Errorf("set damaged records aside: %w", err)
		}
		if b, err = open(path); err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
	}
	d := &DB{bolt: b, log: log, dirty: make(chan struct{}, 1), done: make(chan struct{})}
	d.wait.Add(1)
	go d.syncLoop()
	return d, nil
}

func open(path string) (b *bolt.DB, err error) {
	// bbolt panics on some kinds of damage; here that is one more kind of unreadable file.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
	}()
	b, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, NoSync: true, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	err = b.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, bk *bolt.Bucket) error {
			return bk.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Sync makes every write so far durable.
func (d *DB) Sync() error {
	if err := d.bolt.Sync(); err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	return nil
}

// Close syncs and closes the file.
func (d *DB) Close() error {
	close(d.done)
	d.wait.Wait()
	return errors.Join(d.Sync(), d.bolt.Close())
}

func (d *DB) touched() {
	select {
	case d.dirty <- struct{}{}:
	default:
	}
}

func (d *DB) syncLoop() {
	defer d.wait.Done()
	for {
		select {
		case <-d.done:
			return
		case <-d.dirty:
		}
		select {
		case <-d.done:
			return
		case <-time.After(syncDelay):
		}
		if err := d.Sync(); err != nil {
			d.log.Error("records stay in memory only", "error", err)
		}
	}
}
