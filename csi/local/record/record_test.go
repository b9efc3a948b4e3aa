package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

const one, two = "v-00000000000000000000000000000001", "v-00000000000000000000000000000002"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What was put is there after the next start, and what cannot be read is put aside and keeps its ID.
func TestTable(t *testing.T) {
	dir, aside := filepath.Join(t.TempDir(), "volumes"), t.TempDir()
	warned := 0
	open := func() *Table[Volume] {
		table, err := Open[Volume](dir, aside, true, func(string, error) { warned++ })
		must(t, err)
		return table
	}
	table := open()
	must(t, table.Put(Volume{ID: one, Name: "a"}))
	must(t, table.Put(Volume{ID: two, Name: "b"}))
	if err := table.Put(Volume{ID: "../x"}); err == nil {
		t.Error("a path was taken for an ID")
	}
	must(t, os.WriteFile(filepath.Join(dir, two+".json"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, one+".json.new"), []byte("{"), 0o600))
	for range 2 {
		table = open()
		if v, err := table.Get(one); err != nil || v.Name != "a" {
			t.Errorf("%+v, %v", v, err)
		}
		if _, err := table.Get(two); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v", err)
		}
	}
	if warned != 1 || len(table.All()) != 1 {
		t.Errorf("%d warnings, %v", warned, table.All())
	}
	must(t, table.Delete(one))
	must(t, table.Delete(one))
	must(t, table.Delete("../x"))
	if _, err := open().Get(one); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Whatever is in a file, it is no record, or one whose ID can be part of a path.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":"` + one + `","name":"a","state":"ready","type":"loop","capacity":1}`))
	f.Add([]byte(`{"id":"../x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := decode[Volume](data)
		if err == nil && (!IsID(v.ID) || filepath.Base(v.ID) != v.ID) {
			t.Errorf("%q", v.ID)
		}
	})
}
