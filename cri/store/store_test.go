package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

type row struct {
	Name string
	N    int
}

func TestTableSurvivesReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	tab, err := NewTable[row](db, "rows")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := tab.Put(fmt.Sprint(i), row{"r", i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tab.Delete("3"); err != nil {
		t.Fatal(err)
	}
	if err := tab.Delete("3"); err != nil {
		t.Fatalf("second delete: %v", err)
	}
	if _, err := Open(Config{Path: path}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: got %v, want ErrLocked", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	if db, err = Open(Config{Path: path}); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if tab, err = NewTable[row](db, "rows"); err != nil {
		t.Fatal(err)
	}
	if got := len(maps.Collect(tab.All())); got != 4 {
		t.Errorf("rows after reopen: got %d, want 4", got)
	}
	if _, err := tab.Get("3"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted row: got %v, want ErrNotFound", err)
	}
	if r, err := tab.Get("4"); err != nil || r.N != 4 {
		t.Errorf("row 4: got %+v, %v", r, err)
	}
}

func TestMigration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	old, err := NewTable[row](db, "rows")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Put("a", row{"old", 1}); err != nil {
		t.Fatal(err)
	}
	rename := func(b []byte) ([]byte, error) { return bytes.ReplaceAll(b, []byte("old"), []byte("new")), nil }
	tab, err := NewTable[row](db, "rows", rename)
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := tab.Get("a"); r.Name != "new" {
		t.Errorf("migrated row: got %+v", r)
	}
	if _, err := NewTable[row](db, "rows", rename); err != nil {
		t.Errorf("open at the same version: %v", err)
	}
	if _, err := NewTable[row](db, "rows"); err == nil {
		t.Error("an older program opened newer records")
	}
	db.Close()
}

func TestDamagedFileIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("not a database "), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
}

// A row that cannot be decoded is named, kept, and gone when it is deleted; the others are there.
func TestTableWithoutADamagedRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	texts, err := NewTable[any](db, "t")
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range map[string]any{"good": 1, "bad": "text", "gone": "text"} {
		if err := texts.Put(key, v); err != nil {
			t.Fatal(err)
		}
	}
	numbers, err := NewTable[int](db, "t")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := numbers.Get("good"); v != 1 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	if d := numbers.Damaged(); len(d) != 2 || d["bad"] == nil || d["gone"] == nil {
		t.Errorf("damaged: %v", d)
	}
	if err := errors.Join(numbers.Delete("gone"), numbers.Put("bad", 2)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(Config{Path: path}); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if numbers, err = NewTable[int](db, "t"); err != nil {
		t.Fatal(err)
	}
	if v, err := numbers.Get("bad"); v != 2 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
}
