package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// copies are the snapshots in a directory, the oldest first.
func copies(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^\d{8}T\d{6}Z-r\d+\.db$`)
	var all []string
	for _, e := range entries {
		if name.MatchString(e.Name()) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}

// TestSchedule has snapshots written by themselves and the old ones removed; one of them makes a store anew.
func TestSchedule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	snapshots := filepath.Join(dir, "snapshots")
	flags := []string{"--snapshot-interval=1s", "--snapshot-keep=3"}
	p := startAt(t, dir, "0", flags...)
	p.write(t, "first")
	written := func() { // after this call there is a snapshot that was begun after it
		t.Helper()
		from := copies(t, snapshots)
		until(t, "two more snapshots are written", func() error {
			p.write(t, "first")
			p.write(t, "second")
			now := slices.DeleteFunc(copies(t, snapshots), func(c string) bool { return slices.Contains(from, c) })
			if len(now) < 2 {
				return fmt.Errorf("there are %q", now)
			}
			return nil
		})
	}
	written()
	mine := filepath.Join(snapshots, "mine.db")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	written()
	written()
	if st, err := os.Stat(snapshots); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", st, err)
	}
	p.stop(t)
	all := copies(t, snapshots)
	if len(all) > 4 || len(all) < 3 { // one more, where it was stopped before it removed that
		t.Errorf("%d are kept: %q", len(all), all)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("a foreign file: %v", err)
	}
	if out, err := restore(t.Context(), dir, all[len(all)-1]); err != nil {
		t.Fatalf("restore: %v, %s", err, out)
	}
	p = startAt(t, dir, "0", flags...)
	if !p.holds(t, "first") && !p.holds(t, "second") {
		t.Error("the restored ConfigMap is another one")
	}
}

// TestScheduleFullDisk has no room for snapshots, and then room again: the server goes on all the time.
func TestScheduleFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root mounts a disk to fill")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	filling := filepath.Join(disk, "filling")
	fill, err := os.Create(filling)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 1<<16))
	}
	fill.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	p := startAt(t, t.TempDir(), "0", "--snapshot-interval=1s", "--snapshot-dir", filepath.Join(disk, "s"))
	log := func() string { return p.output.String() }
	const failed = "no snapshot of etcd was written"
	until(t, "the failure is told of", func() error {
		p.write(t, "a")
		if !strings.Contains(log(), failed) {
			return errors.New("nothing yet")
		}
		return nil
	})
	if err := os.Truncate(filling, 0); err != nil {
		t.Fatal(err)
	}
	until(t, "a snapshot is written where there is room again", func() error {
		p.write(t, "b")
		if len(copies(t, filepath.Join(disk, "s"))) == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	p.has(t, "b")
	p.stop(t)
	if n := strings.Count(log(), failed); n != 1 {
		t.Errorf("the failure is told of %d times", n)
	}
}
