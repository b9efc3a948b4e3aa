package etcd

import (
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// value is what a store has at a key, and the revision of the store.
func value(t *testing.T, c *clientv3.Client, key string) (string, int64) {
	t.Helper()
	got, err := c.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return "", got.Header.Revision
	}
	return string(got.Kvs[0].Value), got.Header.Revision
}

func put(t *testing.T, c *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := c.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, m *Member, c *clientv3.Client) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.Stop()
}

// snapshotOf makes a store with a key in it, a snapshot, and another value after that.
func snapshotOf(t *testing.T, dir string) string {
	t.Helper()
	m, c := start(t, dir)
	defer end(t, m, c)
	put(t, c, "/a", "old")
	file := filepath.Join(dir, "file")
	if err := Snapshot(t.Context(), c, file); err != nil {
		t.Fatal(err)
	}
	put(t, c, "/a", "new")
	return file
}

// TestRestore restores the same snapshot twice: revisions rise each time, what was there is aside, and members that are
// left of the cluster before have nothing in common with the one that is restored.
func TestRestore(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	file := snapshotOf(t, dir)
	store := filepath.Join(dir, "etcd")
	var seen int64
	ids := map[uint64]bool{}
	for i := range 2 {
		r, err := Restore(t.Context(), file, store, filepath.Join(dir, "run"), log)
		if err != nil {
			t.Fatal(err)
		}
		if r.Snapshot != 2 || r.Revision <= seen || r.Aside == "" {
			t.Errorf("%d: %+v, after revision %d", i, r, seen)
		}
		m, c := start(t, dir)
		got, revision := value(t, c, "/a")
		if got != "old" || revision < r.Revision {
			t.Errorf("%d: %q at revision %d", i, got, revision)
		}
		watch := <-c.Watch(t.Context(), "/a", clientv3.WithRev(3))
		if watch.CompactRevision == 0 {
			t.Errorf("%d: a watch from before: %+v", i, watch)
		}
		put(t, c, "/a", "newer")
		_, seen = value(t, c, "/a")
		members, err := c.MemberList(t.Context())
		if err != nil || len(members.Members) != 1 || members.Members[0].Name != FirstName {
			t.Fatalf("%d: members: %v, %v", i, members, err)
		}
		ids[members.Header.ClusterId], ids[members.Members[0].ID] = true, true
		end(t, m, c)
	}
	all, err := asides(store)
	if err != nil || len(all) != 2 {
		t.Fatalf("aside: %q, %v", all, err)
	}
	if err := os.Rename(all[0], store); err == nil {
		t.Error("a store went over another")
	}
	if err := os.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(all[0], store); err != nil {
		t.Fatal(err)
	}
	m, c := start(t, dir)
	defer end(t, m, c)
	if got, _ := value(t, c, "/a"); got != "new" {
		t.Errorf("the first store has %q", got)
	}
	first, err := c.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids[first.Header.ClusterId], ids[first.Members[0].ID] = true, true
	if len(ids) != 6 {
		t.Errorf("three clusters have %d IDs of theirs and their members'", len(ids))
	}
}

// TestRestoreRefuses has files that are no whole snapshots change nothing.
func TestRestoreRefuses(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	file := snapshotOf(t, dir)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(data []byte) []byte {
		sum := sha256.Sum256(data)
		return append(slices.Clone(data), sum[:]...)
	}
	other := filepath.Join(dir, "other")
	if err := writeDatabase(other, 3); err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(good)
	flipped[len(flipped)/2] ^= 1
	body := good[:len(good)-sha256.Size]
	hollow := slices.Clone(body)
	clear(hollow[8192:]) // two pages of meta, and nothing that they tell of
	before := list(t, dir)
	for name, data := range map[string][]byte{
		"empty": nil, "torn": good[:len(good)/2], "torn at a block": good[:512*20+sha256.Size], "flipped": flipped,
		"without digest": body, "text": []byte("hello"), "digest alone": signed(nil), "no database": signed(make([]byte, 1<<16)),
		"database without its pages": signed(body[:8192]), "emptied pages": signed(hollow),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), file, filepath.Join(dir, "etcd"), filepath.Join(dir, "run"), log); err == nil ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
		if now := list(t, dir); !slices.Equal(now, before) {
			t.Errorf("%s: %q, not %q", name, now, before)
		}
	}
	for name, path := range map[string]string{"directory": dir, "gone": filepath.Join(dir, "gone")} {
		if _, err := Restore(t.Context(), path, filepath.Join(dir, "etcd"), filepath.Join(dir, "run"), log); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
	m, c := start(t, dir)
	defer end(t, m, c)
	if got, _ := value(t, c, "/a"); got != "new" {
		t.Errorf("the store has %q", got)
	}
}

// TestBump has the bump over all stores that are there, and further where one cannot be read.
func TestBump(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for name, revision := range map[string]int64{dir: 50, aside(dir, "1"): 70, aside(dir, "2"): 0} {
		if err := os.MkdirAll(filepath.Dir(databaseIn(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if revision == 0 {
			continue
		}
		if err := writeDatabase(databaseIn(name), revision); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ revision, want int64 }{{10, 60 + revisionBump}, {70, revisionBump}, {100, revisionBump}} {
		if got, err := bumpOver(c.revision, dir); err != nil || int64(got) != c.want {
			t.Errorf("over %d: %d, %v", c.revision, got, err)
		}
	}
	if err := os.WriteFile(databaseIn(aside(dir, "1")), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(databaseIn(dir), 8192); err != nil { // what it tells of is not in the file
		t.Fatal(err)
	}
	if got, err := bumpOver(10, dir); err != nil || got != 3*revisionBump {
		t.Errorf("over what cannot be read: %d, %v", got, err)
	}
}

// TestSettle begins after each step at which a restore may be killed.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name         string
		old, made    bool // what is there
		record, gone bool
		want         string
	}{
		{name: "before anything", old: true, want: "old"},
		{name: "while it is made", old: true, made: true, want: "old"},
		{name: "recorded", old: true, made: true, record: true, want: "new"},
		{name: "the old one aside", made: true, record: true, gone: true, want: "new"},
		{name: "there was none", made: true, record: true, want: "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etcd")
			to := aside(dir, time.Now().UTC().Format(copyTime))
			mark := func(path, text string) {
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(path, "is"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.old {
				mark(dir, "old")
			}
			if c.gone {
				mark(to, "old")
			}
			if c.made {
				mark(restoring(dir), "new")
			}
			if c.record {
				if err := os.WriteFile(swapping(dir), []byte(`{"aside":"`+filepath.Base(to)+`"}`), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second time there is nothing to do
				if err := settle(dir); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(filepath.Join(dir, "is")); err != nil || string(got) != c.want {
					t.Errorf("it has %q, %v", got, err)
				}
			}
			want := []string{"etcd"}
			if c.want == "new" && (c.old || c.gone) {
				want = append(want, filepath.Base(to))
			}
			if got := list(t, filepath.Dir(dir)); !slices.Equal(got, want) {
				t.Errorf("there are %q, not %q", got, want)
			}
		})
	}
}
