package snapshottest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

func writesStayApart(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "0") })
	dirs := map[string]string{}
	for _, key := range []string{"x", "y"} {
		mounts, err := s.Prepare(t.Context(), key, "a")
		dirs[key] = Mount(t, mounts, err)
		write(t, dirs[key]+"/f", key)
		write(t, dirs[key]+"/only-"+key, key)
	}
	if got := read(t, dirs["x"]+"/f") + read(t, dirs["y"]+"/f"); got != "xy" {
		t.Errorf("files: got %s, want xy", got)
	}
	absent(t, dirs["x"]+"/only-y")
	mounts, err := s.View(t.Context(), "v", "a")
	dir := Mount(t, mounts, err)
	if got := read(t, dir+"/f"); got != "0" {
		t.Errorf("layer changed: got %s, want 0", got)
	}
	absent(t, dir+"/only-x")
	mounts, err = s.Prepare(t.Context(), "scratch", "")
	write(t, Mount(t, mounts, err)+"/f", "1")
}

func viewsAreReadOnly(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "0") })
	Commit(t, s, "b", "a", nil)
	for _, parent := range []string{"", "a", "b"} {
		mounts, err := s.View(t.Context(), "view-"+parent, parent)
		dir := Mount(t, mounts, err)
		want(t, os.WriteFile(dir+"/new", nil, 0o644), unix.EROFS)
	}
}

func prepareAgain(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", nil)
	Commit(t, s, "b", "", nil)
	one, err := s.Prepare(t.Context(), "x", "a")
	dir := Mount(t, one, err)
	write(t, dir+"/f", "1")
	must(t, snapshot.Unmount(dir))
	two, err := s.Prepare(t.Context(), "x", "a")
	if got := read(t, Mount(t, two, err)+"/f"); got != "1" {
		t.Errorf("file: got %s, want 1", got)
	}
	if !slices.EqualFunc(one, two, func(a, b snapshot.Mount) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("mounts: got %v, then %v", one, two)
	}
	_, err = s.Prepare(t.Context(), "x", "b")
	want(t, err, snapshot.ErrExists)
	_, err = s.View(t.Context(), "x", "a")
	want(t, err, snapshot.ErrExists)
}

func inUse(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", nil)
	Commit(t, s, "b", "a", nil)
	_, err := s.Prepare(t.Context(), "x", "b")
	must(t, err)
	_, err = s.View(t.Context(), "v", "b")
	must(t, err)
	want(t, s.Remove(t.Context(), "a"), snapshot.ErrInUse)
	want(t, s.Remove(t.Context(), "b"), snapshot.ErrInUse)
	for i, key := range []string{"x", "v", "b", "a"} {
		must(t, s.Remove(t.Context(), key))
		if got := len(s.List()); got != 3-i {
			t.Fatalf("snapshots after removal of %s: got %d, want %d", key, got, 3-i)
		}
	}
}

func removeTwice(t *testing.T, s snapshot.Snapshotter) {
	must(t, s.Remove(t.Context(), "never"))
	Commit(t, s, "a", "", nil)
	mounts, err := s.Prepare(t.Context(), "x", "a")
	dir := Mount(t, mounts, err)
	write(t, dir+"/f", "1")
	must(t, snapshot.Unmount(dir))
	must(t, snapshot.Unmount(dir))
	must(t, s.Remove(t.Context(), "x"))
	must(t, s.Remove(t.Context(), "x"))
	mounts, err = s.Prepare(t.Context(), "x", "a")
	absent(t, Mount(t, mounts, err)+"/f")
}

func concurrent(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			// Half of them share a key with another.
			key := fmt.Sprint(i / 2)
			mounts, err := s.Prepare(context.Background(), key, "a")
			if err != nil || len(mounts) != 1 {
				t.Errorf("prepare: got %v, %v", mounts, err)
			}
			if i%4 == 3 {
				if err := s.Remove(context.Background(), key); err != nil {
					t.Error(err)
				}
			}
			s.List()
			s.Exists("a")
		})
	}
	wg.Wait()
	for _, i := range s.List() {
		if i.Kind == snapshot.KindActive {
			must(t, s.Remove(t.Context(), i.Key))
		}
	}
	must(t, s.Remove(t.Context(), "a"))
}

func cleanKeeps(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	Commit(t, s, "b", "a", nil)
	mounts, err := s.Prepare(t.Context(), "x", "b")
	dir := Mount(t, mounts, err)
	write(t, dir+"/g", "1")
	must(t, s.Sync(t.Context()))
	must(t, s.Clean(t.Context()))
	must(t, s.Clean(t.Context()))
	if got := read(t, dir+"/f") + read(t, dir+"/g"); got != "11" {
		t.Errorf("files: got %s, want 11", got)
	}
}
