package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// lostOptions are those of a store whose beginning is on record.
func lostOptions(dir string) Options {
	return Options{
		Dir: filepath.Join(dir, "etcd"), RunDir: filepath.Join(dir, "run"), Begun: filepath.Join(dir, "begun"),
		Snapshots: filepath.Join(dir, "snapshots"), Log: slog.New(slog.DiscardHandler),
	}
}

// began makes a store that is on record, with some pages of objects and a copy.
func began(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	o := lostOptions(dir)
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, o.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, m, c)
	for i := range 50 {
		put(t, c, fmt.Sprintf("/%d", i), strings.Repeat("x", 4000))
	}
	if err := os.Mkdir(o.Snapshots, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Snapshot(t.Context(), c, filepath.Join(o.Snapshots, "20260102T030405Z-r51.db")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestLost takes from a store what etcd takes for one that has never begun: no other one begins, and a copy is named.
func TestLost(t *testing.T) {
	for name, take := range map[string]func(o Options) error{
		"all of it":         func(o Options) error { return os.RemoveAll(o.Dir) },
		"the member":        func(o Options) error { return os.RemoveAll(filepath.Join(o.Dir, "member")) },
		"the log":           func(o Options) error { return os.RemoveAll(logIn(o.Dir)) },
		"what the log has":  func(o Options) error { return emptied(logIn(o.Dir)) },
		"it and the record": func(o Options) error { return remove(o.Dir, o.Begun) },
		"the log, the record, the copies": func(o Options) error {
			return remove(logIn(o.Dir), o.Begun, o.Snapshots)
		},
	} {
		dir := began(t)
		o := lostOptions(dir)
		if err := take(o); err != nil {
			t.Fatal(err)
		}
		for range 2 { // nor does the next start
			m, err := Start(t.Context(), o)
			if err == nil {
				m.Stop()
				t.Fatalf("%s is gone, and another store has begun", name)
			}
			if !strings.Contains(err.Error(), logIn(o.Dir)) || !strings.Contains(err.Error(), "etcd restore") {
				t.Errorf("%s is gone: %v", name, err)
			}
		}
	}
}

func emptied(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}

func remove(all ...string) error {
	for _, path := range all {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// TestLostRestored has the copy that was named make the store anew, and the record begin with nothing when it is moved.
func TestLostRestored(t *testing.T) {
	dir := began(t)
	o := lostOptions(dir)
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), newest(o.Snapshots), o.Dir, o.RunDir, o.Log); err != nil {
		t.Fatal(err)
	}
	m, c := start(t, dir)
	if got, _ := value(t, c, "/7"); len(got) != 4000 {
		t.Errorf("restored is %.20q", got)
	}
	end(t, m, c)
	if err := remove(o.Dir, o.Begun, o.Snapshots); err != nil {
		t.Fatal(err)
	}
	for _, rest := range []string{"", "a start that was cut off"} {
		if rest != "" {
			if err := remove(o.Dir, o.Begun); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Dir(databaseIn(o.Dir)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(databaseIn(o.Dir), make([]byte, 8192), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := Start(t.Context(), o)
		if err != nil {
			t.Fatalf("%q: %v", rest, err)
		}
		m.Stop()
		if _, err := os.Stat(o.Begun); err != nil {
			t.Errorf("%q: %v", rest, err)
		}
	}
}

// leaves are the pages of keys that a database uses, each from its first byte to its last. Any other may be free, and
// have something else once a member runs, or have nothing but more of a value, of which nothing tells that it is not
// what was written.
func leaves(t *testing.T, path string) (pages [][2]int) {
	t.Helper()
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		size := db.Info().PageSize
		for id := 2; ; {
			p, err := tx.Page(id)
			if p == nil || err != nil {
				return err
			}
			next := id + 1
			if p.Type != "free" {
				next += p.OverflowCount
			}
			if p.Type == "leaf" {
				pages = append(pages, [2]int{id * size, next * size})
			}
			id = next
		}
	}); err != nil || len(pages) == 0 {
		t.Fatalf("%d pages of keys: %v", len(pages), err)
	}
	return pages
}

// TestDamagedDatabase damages the database in ways with which the library ends the process. It is named, with a copy,
// and no copy is made of what is damaged.
func TestDamagedDatabase(t *testing.T) {
	dir := began(t)
	o := lostOptions(dir)
	path := databaseIn(o.Dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pages := leaves(t, path)
	used := pages[len(pages)-1][1]
	zeroed := func(from, to int) []byte {
		out := bytes.Clone(good)
		clear(out[from:to])
		return out
	}
	page := pages[len(pages)/2][0]
	for name, data := range map[string][]byte{
		"a quarter":         good[:used/4],
		"one page":          good[:4096],
		"a hundred bytes":   good[:100],
		"without a head":    zeroed(0, 8192),
		"a page of nothing": zeroed(page, page+4096),
		"a tail of nothing": zeroed(page, len(good)),
		"nothing":           make([]byte, len(good)),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Start(t.Context(), o)
		if err == nil {
			m.Stop()
			t.Errorf("%s: it starts", name)
			continue
		}
		if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), newest(o.Snapshots)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, dir := range []string{filepath.Dir(path), logIn(o.Dir)} {
		pipe := filepath.Join(dir, "0.wal")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), pipe) {
			t.Errorf("a pipe among the files: %v", err)
		}
		if err := os.Remove(pipe); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, o.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, m, c)
	// Below a member that runs, whose pages are those of the file: no field of a message is of kind 7.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := append([]byte{5<<3 | 2, 4000&0x7f | 0x80, 4000 >> 7}, "xxxx"...)
	for _, page := range pages {
		at := bytes.Index(good[page[0]:page[1]], head)
		if at < 0 {
			continue
		}
		if _, err := f.WriteAt([]byte{7}, int64(page[0]+at)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "copy")
	if err := Snapshot(t.Context(), c, file); err == nil || !strings.Contains(err.Error(), "store itself") {
		t.Errorf("a copy of what is damaged: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("there is a copy of what is damaged")
	}
}
