package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const page = 4096

// states yields what a power cut can leave of a file, of which synced had reached the disk and written had not: each
// page that differs is the old one, the new one, or torn at one of its sectors, and the file has the old or the new
// length. Of many pages, not all combinations are tried.
func states(synced, written []byte, yield func(state []byte)) {
	var differ []int
	at := func(b []byte, n int) []byte {
		p := make([]byte, page)
		if n*page < len(b) {
			copy(p, b[n*page:])
		}
		return p
	}
	for n := range (max(len(synced), len(written)) + page - 1) / page {
		if !bytes.Equal(at(synced, n), at(written, n)) {
			differ = append(differ, n)
		}
	}
	build := func(choose func(i int) int) {
		// Of how many sectors the new content counts, from the front; negative: from the end.
		for _, size := range []int{len(written), len(synced)} {
			state := make([]byte, max(len(written), len(synced))+page)
			copy(state, synced)
			for i, n := range differ {
				p, now, s := at(synced, n), at(written, n), choose(i)*512
				if s >= 0 {
					copy(p, now[:s])
				} else {
					copy(p[page+s:], now[page+s:])
				}
				copy(state[n*page:], p)
			}
			yield(state[:size])
		}
	}
	const all = page / 512
	for mask := range 1 << min(len(differ), 7) {
		build(func(i int) int { return all * (mask >> (i % 7) & 1) })
	}
	for torn := range differ {
		for s := -all + 1; s < all; s++ {
			build(func(i int) int {
				if i == torn {
					return s
				}
				return all * (i & 1)
			})
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 80 {
		build(func(int) int { return r.IntN(2*all+1) - all })
	}
}

// opened opens a file with that content, as the next start does, and returns what it has.
func opened(t *testing.T, path string, content []byte) map[string]row {
	t.Helper()
	must(t, os.WriteFile(path, content, 0o600))
	db, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	tab, err := NewTable[row](db, "rows")
	if err != nil {
		t.Fatal(err)
	}
	rows := maps.Collect(tab.All())
	must(t, tab.Put("new", row{"new", 1}))
	must(t, db.closeFiles()) // without the wait for the disk
	close(db.tender.done)
	db.tender.wait.Wait()
	again, err := os.ReadFile(path)
	must(t, err)
	c, err := parse(again)
	if err != nil || c.bad > 0 {
		t.Fatalf("the file is not whole afterwards: %d, %v", c.bad, err)
	}
	return rows
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changes does some hundred of them.
func changes(t *testing.T, tab *Table[row], from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		must(t, tab.Put(fmt.Sprint("key ", i), row{strings.Repeat("x", i*37%900), i}))
		if i%5 == 4 {
			must(t, tab.Delete(fmt.Sprint("key ", i-3)))
		}
	}
}

// A power cut costs what was not synced, and no more.
func TestTornFile(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Config{Path: filepath.Join(dir, "x.db")})
	must(t, err)
	tab, err := NewTable[row](db, "rows")
	must(t, err)
	changes(t, tab, 0, 40)
	must(t, db.Sync())
	synced, err := os.ReadFile(filepath.Join(dir, "x.db"))
	must(t, err)
	want := maps.Collect(tab.All())
	changes(t, tab, 40, 90)
	written, err := os.ReadFile(filepath.Join(dir, "x.db"))
	must(t, err)
	must(t, db.Close())
	n := 0
	states(synced, written, func(state []byte) {
		n++
		rows := opened(t, filepath.Join(dir, "torn.db"), state)
		for key, r := range want {
			if got, ok := rows[key]; (!ok || got != r) && !bytes.Contains(state[len(synced):], []byte(fmt.Sprintf("%q", key))) {
				t.Fatalf("state %d: %s was synced and is %v", n, key, got)
			}
		}
	})
	t.Logf("%d states", n)
}

// What counts of a file after a power cut counts at the next start as well.
func TestTornLastByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	last := &change{seq: 7, table: "rows", key: "last", value: []byte(`{"Name":"last","N":7}`)}
	content := append([]byte(headerLine(version)), bytes.TrimSuffix(last.line(), []byte("\n"))...)
	before := opened(t, path, content)
	content, err := os.ReadFile(path)
	must(t, err)
	after := opened(t, path, content)
	if _, ok := before["last"]; !ok || after["last"] != before["last"] {
		t.Errorf("it was %v and is %v", before["last"], after["last"])
	}
}

// Whatever a file has, opening it goes on with what can be read of it.
func TestAnyContent(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Config{Path: filepath.Join(dir, "x.db")})
	must(t, err)
	tab, err := NewTable[row](db, "rows")
	must(t, err)
	changes(t, tab, 0, 30)
	must(t, db.Close())
	whole, err := os.ReadFile(filepath.Join(dir, "x.db"))
	must(t, err)
	former := writeFormer(t, dir, 30)
	r := rand.New(rand.NewPCG(3, 4))
	for name, file := range map[string][]byte{"ours": whole, "former": former} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			rows := opened(t, path, file)
			if len(rows) != 24 {
				t.Fatalf("rows: got %d", len(rows))
			}
			for size := 0; size < len(file); size += 509 {
				opened(t, path, file[:size])
			}
			opened(t, path, make([]byte, len(file)))
			for range 150 {
				b := bytes.Clone(file)
				for range 1 + r.IntN(8) {
					b[r.IntN(len(b))] ^= 1 << r.IntN(8)
				}
				opened(t, path, b)
			}
			for range 50 {
				b := bytes.Clone(file)
				at := r.IntN(len(b))
				for i := at; i < min(len(b), at+r.IntN(3*page)); i++ {
					b[i] = byte(r.Uint32())
				}
				opened(t, path, b)
			}
		})
	}
	// One line costs one record.
	lines := bytes.Split(bytes.TrimSpace(whole), []byte("\n"))
	b := bytes.Clone(whole)
	at := bytes.Index(b, lines[len(lines)/2]) + 20
	b[at] ^= 4
	path := filepath.Join(dir, "y.db")
	if got := opened(t, path, b); len(got) < 23 {
		t.Errorf("rows after a flipped bit: %d", len(got))
	}
	if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, b) {
		t.Errorf("the damaged file is not kept: %v", err)
	}
}

// writeFormer makes a file of a former version with the changes of the tests.
func writeFormer(t *testing.T, dir string, n int) []byte {
	t.Helper()
	path := filepath.Join(dir, "former.db")
	b := formerDB(t, path)
	formerChanges(t, b, 0, n)
	must(t, b.Close())
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

func formerDB(t *testing.T, path string) *bolt.DB {
	t.Helper()
	b, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	must(t, err)
	return b
}

func formerChanges(t *testing.T, b *bolt.DB, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		must(t, b.Update(func(tx *bolt.Tx) error {
			bk, err := tx.CreateBucketIfNotExists([]byte("rows"))
			must(t, err)
			if i%5 == 4 {
				must(t, bk.Delete([]byte(fmt.Sprint("key ", i-3))))
			}
			must(t, bk.Put([]byte("\x00version"), []byte("0")))
			return bk.Put([]byte(fmt.Sprint("key ", i)), fmt.Appendf(nil, `{"Name":%q,"N":%d}`, strings.Repeat("x", i*37%900), i))
		}))
	}
}

// A file of a former version is read in whatever state a power cut has left it.
func TestTornFormerFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "former.db")
	b := formerDB(t, path)
	formerChanges(t, b, 0, 60)
	synced, err := os.ReadFile(path)
	must(t, err)
	formerChanges(t, b, 60, 90)
	written, err := os.ReadFile(path)
	must(t, err)
	must(t, b.Close())
	if got := opened(t, filepath.Join(dir, "whole.db"), written); len(got) != 72 || got["key 88"].N != 88 {
		t.Fatalf("rows: got %d", len(got))
	}
	n := 0
	states(synced, written, func(state []byte) {
		n++
		opened(t, filepath.Join(dir, "torn.db"), state)
	})
	// A page that is its own child, and one whose numbers lead out of the file.
	for _, v := range []uint32{0, 2, 3, 4, 1 << 20, 1<<32 - 1} {
		for at := 2 * page; at+4 < len(written); at += 4 {
			if at%page > 200 {
				continue
			}
			s := bytes.Clone(written)
			binary.LittleEndian.PutUint32(s[at:], v)
			if _, _, err := parseAny(s); err != nil && !errors.Is(err, errDamaged) {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d states", n)
}

// The copy of this boot has all that the file has lost, and nothing of another boot.
func TestCopyBeside(t *testing.T) {
	dir := t.TempDir()
	c := Config{Path: filepath.Join(dir, "x.db"), Beside: filepath.Join(dir, "run.db"), Log: slog.New(slog.DiscardHandler)}
	open := func() (*DB, *Table[row]) {
		t.Helper()
		db, err := Open(c)
		must(t, err)
		tab, err := NewTable[row](db, "rows")
		must(t, err)
		return db, tab
	}
	db, tab := open()
	changes(t, tab, 0, 20)
	want := maps.Collect(tab.All())
	must(t, db.Close())
	var told bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&told, nil))
	for range 3 { // a copy that was written again tells nothing new
		db, _ = open()
		must(t, db.Close())
	}
	if told.Len() > 0 {
		t.Errorf("of a file that has lost nothing it is told: %s", &told)
	}
	c.Log = slog.New(slog.DiscardHandler)
	for name, damage := range map[string]func() error{
		"gone":      func() error { return os.Remove(c.Path) },
		"emptied":   func() error { return os.Truncate(c.Path, 0) },
		"cut":       func() error { return os.Truncate(c.Path, 700) },
		"zeros":     func() error { return os.WriteFile(c.Path, make([]byte, 9999), 0o600) },
		"of others": func() error { return os.WriteFile(c.Path, bytes.Repeat([]byte("not a database\n"), 500), 0o600) },
	} {
		must(t, damage())
		db, tab := open()
		if got := maps.Collect(tab.All()); !maps.Equal(got, want) {
			t.Errorf("%s: %d records, want %d", name, len(got), len(want))
		}
		must(t, db.Close())
		must(t, os.Rename(c.Beside, c.Beside+"-")) // and now the file has them again
		db, tab = open()
		if got := maps.Collect(tab.All()); !maps.Equal(got, want) {
			t.Errorf("%s: afterwards %d records, want %d", name, len(got), len(want))
		}
		must(t, db.Close())
	}
	must(t, os.Remove(c.Path))
	b, err := os.ReadFile(c.Beside)
	must(t, err)
	l := change{table: bootTable, key: "another boot", value: []byte("true")}
	b = append([]byte(headerLine(1)), append(l.line(), bytes.SplitN(b, []byte("\n"), 3)[2]...)...)
	must(t, os.WriteFile(c.Beside, b, 0o600))
	db, tab = open()
	if got := maps.Collect(tab.All()); len(got) != 0 {
		t.Errorf("records of another boot: %v", got)
	}
	must(t, db.Close())
}

// A record that cannot be decoded is told of, stays, and keeps nobody from the others.
func TestUndecodableRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := Open(Config{Path: path})
	must(t, err)
	odd, err := NewTable[string](db, "rows")
	must(t, err)
	must(t, odd.Put("odd", "a string"))
	must(t, db.Close())
	for range 2 {
		db, err = Open(Config{Path: path})
		must(t, err)
		tab, err := NewTable[row](db, "rows")
		must(t, err)
		must(t, tab.Put("even", row{"x", 1}))
		if d := tab.Damaged(); len(d) != 1 || d["odd"] == nil {
			t.Errorf("damaged: %v", d)
		}
		must(t, db.rewrite())
		must(t, db.Close())
	}
	db, err = Open(Config{Path: path})
	must(t, err)
	tab, err := NewTable[row](db, "rows")
	must(t, err)
	must(t, tab.Delete("odd"))
	must(t, db.Close())
	db, err = Open(Config{Path: path})
	must(t, err)
	defer db.Close()
	if tab, err = NewTable[row](db, "rows"); err != nil || len(tab.Damaged()) != 0 {
		t.Errorf("after its removal: %v, %v", tab.Damaged(), err)
	}
}

// On a file system without room, or that is read-only, what has ended is remembered, new records are refused with the
// reason, and nothing is lost when it can be written again.
func TestFullAndReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	disk := t.TempDir()
	must(t, unix.Mount("t", disk, "tmpfs", 0, "size=2m"))
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	c := Config{Path: filepath.Join(disk, "x.db"), Beside: filepath.Join(t.TempDir(), "run.db")}
	db, err := Open(c)
	must(t, err)
	tab, err := NewTable[row](db, "rows")
	must(t, err)
	changes(t, tab, 0, 10)
	n := 0
	for ; err == nil; n++ {
		err = tab.Put(fmt.Sprint("more ", n), row{strings.Repeat("y", 4000), n})
	}
	if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, ErrReadOnly) || db.Trouble() == nil {
		t.Fatalf("put on a full disk: %v, %v", err, db.Trouble())
	}
	if _, err := tab.Get(fmt.Sprint("more ", n-1)); err == nil {
		t.Error("a record that was refused is there")
	}
	must(t, tab.Note("key 0", row{"noted", 1}))
	for i := range n - 1 {
		must(t, tab.Delete(fmt.Sprint("more ", i)))
	}
	db.tend() // what counts fits
	if err := db.Trouble(); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	must(t, tab.Put("fits", row{"z", 1}))

	must(t, db.Close())
	must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	db, err = Open(c)
	must(t, err)
	if !errors.Is(db.Trouble(), unix.EROFS) {
		t.Errorf("trouble: %v", db.Trouble())
	}
	if tab, err = NewTable[row](db, "rows"); err != nil {
		t.Fatal(err)
	}
	if r, err := tab.Get("key 0"); err != nil || r.Name != "noted" {
		t.Errorf("noted: %v, %v", r, err)
	}
	if err := tab.Put("new", row{}); !errors.Is(err, unix.EROFS) {
		t.Errorf("put: %v", err)
	}
	must(t, tab.Note("key 6", row{"noted", 2}))
	must(t, tab.Delete("fits"))
	must(t, db.Close())
	for range 2 {
		db, err = Open(c)
		must(t, err)
		tab, err = NewTable[row](db, "rows")
		must(t, err)
		if r, err := tab.Get("key 6"); err != nil || r.N != 2 {
			t.Errorf("noted: %v, %v", r, err)
		}
		if _, err := tab.Get("fits"); err == nil {
			t.Error("a deleted record is there")
		}
		if db.Trouble() != nil {
			must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
			db.tend()
			must(t, db.Trouble())
			must(t, tab.Put("new", row{"new", 1}))
		}
		must(t, db.Close())
		_ = os.Remove(c.Beside) // the second time without it
	}
	if _, err := os.Stat(c.Path + ".damaged"); err == nil {
		t.Error("records that nothing is wrong with were set aside")
	}
}

// A file system that is read-only may not even have the directory. It is made with the file when it can be, and who
// waits hears of it.
func TestMissingAndReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	disk := t.TempDir()
	must(t, unix.Mount("t", disk, "tmpfs", unix.MS_RDONLY, "size=2m"))
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	path := filepath.Join(disk, "root/x.db")
	db, err := Open(Config{Path: path})
	must(t, err)
	tab, err := NewTable[row](db, "rows")
	must(t, err)
	mended := db.Mended()
	if err := tab.Put("a", row{}); !errors.Is(err, unix.EROFS) || mended == nil {
		t.Errorf("put: %v, mended: %v", err, mended)
	}
	must(t, unix.Mount("", disk, "", unix.MS_REMOUNT, ""))
	db.tend()
	must(t, db.Trouble())
	select {
	case <-mended:
	default:
		t.Error("who waits for the end of the trouble does not hear of it")
	}
	if db.Mended() != nil {
		t.Error("there is no trouble, and it can be waited for")
	}
	must(t, tab.Put("a", row{"a", 1}))
	must(t, db.Close())
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
