package etcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// fakeSource is a store that writes what it is told.
type fakeSource struct {
	mu       sync.Mutex
	revision int64
	fails    error
	writes   int
}

// becomes has the store be another one from now on.
func (f *fakeSource) becomes(revision int64, fails error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision, f.fails = revision, fails
}

// tried is how often a copy was begun.
func (f *fakeSource) tried() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

func (f *fakeSource) status(context.Context) (int64, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision, 1, nil
}

func (f *fakeSource) write(_ context.Context, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.fails != nil {
		return errors.Join(f.fails, os.WriteFile(path, []byte("half"), 0o600))
	}
	return writeDatabase(path, f.revision)
}

// writeDatabase writes a database of etcd that has nothing in it but its revision.
func writeDatabase(path string, revision int64) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(func(tx *bbolt.Tx) error {
		for _, b := range []string{"meta", "cluster"} {
			if _, err := tx.CreateBucket([]byte(b)); err != nil {
				return err
			}
		}
		b, err := tx.CreateBucket(schema.Key.Name())
		if err != nil {
			return err
		}
		return b.Put(mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes()), []byte{})
	})
}

// list are the names in a directory.
func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestSchedule has copies written by a clock that only jumps.
func TestSchedule(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	synctest.Test(t, func(t *testing.T) { // its clock begins at midnight of 2000-01-01
		from, log := &fakeSource{revision: 1}, &bytes.Buffer{}
		s := Schedule{Dir: dir, Store: dir, Interval: 6 * time.Hour, Keep: 2, Log: slog.New(slog.NewTextHandler(log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.run(ctx, from)
		has := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := list(t, dir); !slices.Equal(got, want) {
				t.Errorf("%s: %q, not %q", what, got, want)
			}
		}
		has("an empty store")
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("the directory: %v, %v", st, err)
		}
		for _, foreign := range []string{"20000101T000000Z-r1.db.bak", "mine.db"} {
			if err := os.WriteFile(filepath.Join(dir, foreign), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		foreign := list(t, dir)
		from.becomes(7, nil)
		time.Sleep(6 * time.Hour)
		has("the first", "20000101T000000Z-r1.db.bak", "20000101T060000Z-r7.db", "mine.db")
		time.Sleep(6 * time.Hour)
		has("nothing new", "20000101T000000Z-r1.db.bak", "20000101T060000Z-r7.db", "mine.db")
		from.becomes(8, errors.New("the disk is full"))
		time.Sleep(6*time.Hour + 25*time.Minute)
		has("a failure", "20000101T000000Z-r1.db.bak", "20000101T060000Z-r7.db", "mine.db")
		if said := strings.Count(log.String(), "the disk is full"); from.tried() != 4 || said != 1 || !strings.Contains(log.String(), "--snapshot-dir") {
			t.Errorf("tried %d times, told %d times:\n%s", from.tried(), said, log)
		}
		from.becomes(8, nil)
		time.Sleep(5 * time.Minute)
		has("after failures", "20000101T000000Z-r1.db.bak", "20000101T060000Z-r7.db", "20000101T183000Z-r8.db", "mine.db")
		if !strings.Contains(log.String(), "written again") {
			t.Errorf("the end of the failure was not told of:\n%s", log)
		}
		from.becomes(9, nil)
		time.Sleep(6 * time.Hour)
		has("more than are kept", append(foreign[:1:1], "20000101T183000Z-r8.db", "20000102T003000Z-r9.db", "mine.db")...)
		cancel()
		synctest.Wait()
	})
}

// TestScheduleAfterRestart has the newest copy decide when the next is due, and removes what a killed writer has left.
func TestScheduleAfterRestart(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"19991231T230000Z-r5.db", partName} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		from := &fakeSource{revision: 9}
		s := Schedule{Dir: dir, Store: dir, Interval: 6 * time.Hour, Keep: 2, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.run(ctx, from)
		time.Sleep(5*time.Hour - time.Second)
		synctest.Wait()
		if from.tried() != 0 {
			t.Error("written before it was due")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := list(t, dir), []string{"19991231T230000Z-r5.db", "20000101T050000Z-r9.db"}; !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
		cancel()
		synctest.Wait()
	})
}

// TestRoom has a copy refused that would take the last of the disk.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	s := Schedule{Dir: dir, Store: dir, Log: slog.New(slog.DiscardHandler)}
	if err := s.room(1 << 10); err != nil {
		t.Error(err)
	}
	if err := s.room(1 << 60); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a copy that does not fit: %v", err)
	}
}

// TestHalfSnapshot has the next start remove what a killed one has left of a copy, long before the next one is due.
func TestHalfSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Schedule{Dir: t.TempDir(), Interval: time.Hour, Keep: 2, Log: slog.New(slog.DiscardHandler)}
		if err := writeDatabase(filepath.Join(s.Dir, copied{time.Now().UTC(), 5}.name()), 5); err != nil {
			t.Fatal(err)
		}
		part := filepath.Join(s.Dir, partName)
		if err := os.WriteFile(part, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		from := &fakeSource{revision: 5}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { s.run(ctx, from) })
		synctest.Wait()
		if _, err := os.Stat(part); !os.IsNotExist(err) || from.tried() > 0 {
			t.Errorf("a half of a copy is left: %v; tried %d times", err, from.tried())
		}
		cancel()
		run.Wait()
	})
}
