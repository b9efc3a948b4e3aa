package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

const (
	// emptyRevision is that of a store in which nothing was ever written.
	emptyRevision = 1
	// copyLimit bounds the writing of one copy.
	copyLimit = 30 * time.Minute
	// retryAfter is when a copy that has failed is tried again, at the latest.
	retryAfter = 10 * time.Minute
	// partName is a copy that is being written. There is one at a time: what a killed writer has left is written over.
	partName = "snapshot.db" + atomicfile.Part
	// spare is what a copy leaves free on the disk of the store itself: etcd ends when it can write no more, and makes
	// files of 64 MB.
	spare = 192 << 20
)

// Schedule is when copies of the store are written, and where.
type Schedule struct {
	// Dir has the copies. Files in it with other names than those of copies are left as they are.
	Dir string
	// Store is the directory of etcd, which a copy may not take the last of the disk from.
	Store    string
	Interval time.Duration
	// Keep is how many copies there are at most.
	Keep int
	Log  *slog.Logger
}

// Run writes copies until the context ends. One that fails is told of, and tried again.
func (s Schedule) Run(ctx context.Context, client *clientv3.Client) { s.run(ctx, server{client}) }

// source is what is copied.
type source interface {
	// status is the revision, and the size of a copy in bytes.
	status(ctx context.Context) (revision, size int64, err error)
	write(ctx context.Context, path string) error
}

func (s Schedule) run(ctx context.Context, from source) {
	// As large as the store, it would otherwise be there until the next copy. Where it cannot be removed that says why.
	_ = os.Remove(filepath.Join(s.Dir, partName))
	var told string
	for wait := s.first(time.Now()); ; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		err := s.once(ctx, from)
		if ctx.Err() != nil {
			return
		}
		wait = s.Interval
		if err != nil {
			wait = min(wait, retryAfter)
		}
		if text := message(err); text != told {
			told = text
			s.tell(err, wait)
		}
	}
}

// first is the wait until the first copy. What cannot be read is told of when it is tried.
func (s Schedule) first(now time.Time) time.Duration {
	all, err := s.copies()
	if err != nil {
		return 0
	}
	return due(all, now, s.Interval)
}

// message is what a failure is known by: the same one twice in a row is told of once.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s Schedule) tell(err error, next time.Duration) {
	if err == nil {
		s.Log.Info("snapshots of etcd are written again", "dir", s.Dir)
		return
	}
	s.Log.Error("no snapshot of etcd was written: see to it that the directory can be written and has room, or name another by "+
		"--snapshot-dir", "dir", s.Dir, "error", err, "next-try", next)
}

// once writes a copy if there is something new to copy, and removes what is too old.
func (s Schedule) once(ctx context.Context, from source) error {
	ctx, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	revision, size, err := from.status(ctx)
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	if err := atomicfile.MkdirSynced(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of snapshots: %w", err)
	}
	part := filepath.Join(s.Dir, partName)
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove snapshot that is not whole: %w", err)
	}
	all, err := s.copies()
	if err != nil {
		return err
	}
	if wanted(all, time.Now(), revision) {
		if err := s.room(size); err != nil {
			return err
		}
		made, err := s.write(ctx, from, part)
		if err != nil {
			_ = os.Remove(part) // the next one begins with it
			return err
		}
		s.Log.Info("snapshot of etcd is written", "file", filepath.Join(s.Dir, made.name()))
		all = append(all, made)
	}
	return s.prune(all)
}

// write writes a copy, and names it when it is whole and on the disk.
func (s Schedule) write(ctx context.Context, from source, part string) (copied, error) {
	if err := from.write(ctx, part); err != nil {
		return copied{}, err
	}
	revision, err := readRevision(part)
	if err != nil {
		return copied{}, fmt.Errorf("check snapshot of etcd: %w", err)
	}
	made := copied{time.Now().UTC().Truncate(time.Second), revision}
	if err := os.Rename(part, filepath.Join(s.Dir, made.name())); err != nil {
		return copied{}, fmt.Errorf("write snapshot of etcd: %w", err)
	}
	if err := atomicfile.SyncDir(s.Dir); err != nil {
		return copied{}, fmt.Errorf("write snapshot of etcd: %w", err)
	}
	return made, nil
}

// room refuses a copy that does not fit. On the disk of the store it has to leave etcd what that needs.
func (s Schedule) room(size int64) error {
	var dir, store unix.Stat_t
	if err := unix.Stat(s.Dir, &dir); err != nil {
		return fmt.Errorf("ask for room in %s: %w", s.Dir, err)
	}
	if err := unix.Stat(s.Store, &store); err == nil && store.Dev == dir.Dev {
		size += spare
	}
	free, err := freeIn(s.Dir)
	if err != nil {
		return err
	}
	if free < size {
		// The numbers change all the time, and would make another message of the same failure.
		s.Log.Debug("no room for a snapshot of etcd", "free", free, "needed", size)
		return fmt.Errorf("write snapshot of etcd in %s: %w", s.Dir, unix.ENOSPC)
	}
	return nil
}

// copies are the copies in the directory, in any order.
func (s Schedule) copies() ([]copied, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var all []copied
	for _, e := range entries {
		if c, ok := parseCopy(e.Name()); ok && e.Type().IsRegular() {
			all = append(all, c)
		}
	}
	return all, nil
}

func (s Schedule) prune(all []copied) error {
	for _, c := range surplus(all, time.Now(), s.Keep) {
		if err := os.Remove(filepath.Join(s.Dir, c.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old snapshot: %w", err)
		}
	}
	return nil
}

// server is the etcd that a client speaks to.
type server struct{ client *clientv3.Client }

func (s server) status(ctx context.Context) (revision, size int64, err error) {
	st, err := s.client.Status(ctx, s.client.Endpoints()[0])
	if err != nil {
		return 0, 0, err
	}
	return st.Header.Revision, st.DbSize, nil
}

func (s server) write(ctx context.Context, path string) error {
	return writeSnapshot(ctx, s.client, path)
}
