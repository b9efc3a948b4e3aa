package record

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const one, two = "v-00000000000000000000000000000001", "v-00000000000000000000000000000002"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func volume(id, name string) Volume {
	return Volume{ID: id, Name: name, State: Ready, Content: Content{Type: "loop", Capacity: 1 << 20}}
}

// What was put is there after the next start, and what cannot be read is put aside and keeps its ID.
func TestTable(t *testing.T) {
	dir, aside := filepath.Join(t.TempDir(), "volumes"), t.TempDir()
	warned := 0
	open := func() *Table[Volume] {
		table, err := Open[Volume](dir, aside, func(string, error) { warned++ })
		must(t, err)
		return table
	}
	table := open()
	must(t, table.Put(volume(one, "a")))
	must(t, table.Put(volume(two, "b")))
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

// What is being removed is so at the next start, too, also when its record is cut off there, and is gone with it.
func TestLeave(t *testing.T) {
	dir, aside := filepath.Join(t.TempDir(), "volumes"), t.TempDir()
	open := func() *Table[Volume] {
		table, err := Open[Volume](dir, aside, func(file string, err error) { t.Log(file, err) })
		must(t, err)
		return table
	}
	table := open()
	must(t, table.Put(volume(one, "a")))
	must(t, table.Put(volume(two, "b")))
	for range 2 {
		must(t, table.Leave(one))
		must(t, table.Leave(two))
	}
	for range 2 {
		if v, err := table.Get(one); err != nil || v.State != Removing || v.Name != "a" {
			t.Errorf("%+v, %v", v, err)
		}
		table = open()
	}
	must(t, table.Delete(one))
	must(t, os.Truncate(filepath.Join(dir, two+leaving), 20))
	for range 2 {
		table = open()
		if _, err := table.Get(two); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v", err)
		}
		if _, err := table.Get(one); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
	if err := table.Leave(two); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
}

// No bit of a record can turn over, and no part of it be missing, without its being known.
func TestEachBit(t *testing.T) {
	v := volume(one, "a")
	v.Parameters = map[string]string{"type": "loop"}
	data, err := encode(v)
	must(t, err)
	if got, err := decode[Volume](data); err != nil || !reflect.DeepEqual(got, v) {
		t.Fatalf("%+v, %v", got, err)
	}
	text, _, _ := bytes.Cut(data, []byte("\n"))
	for bit := range 8 * len(data) {
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		if _, err := decode[Volume](flipped); err == nil {
			t.Errorf("bit %d is not missed in %q", bit, flipped)
		}
	}
	for n := range data {
		got, err := decode[Volume](data[:n])
		// As versions before this one wrote it.
		if whole := n == len(text); whole != (err == nil) || whole && !reflect.DeepEqual(got, v) {
			t.Errorf("the first %d bytes: %+v, %v", n, got, err)
		}
	}
	for _, not := range []Volume{{}, {ID: one}, {ID: one, State: "seady", Content: v.Content}, {ID: one, State: Ready, Content: Content{Type: "tape", Capacity: 1}}} {
		data, err := encode(not)
		must(t, err)
		if _, err := decode[Volume](data); err == nil {
			t.Errorf("%+v is a volume", not)
		}
	}
	long := volume(one, strings.Repeat("x", maxRecord))
	if _, err := encode(long); err == nil {
		t.Error("a record was written that cannot be read again")
	}
}

// Of a record that was written over a longer one, what is behind it does not count, and no half of one counts.
func TestWrittenOver(t *testing.T) {
	long := Use{Volume: one, Type: "loop", Staging: "/staging", Targets: map[string]Target{"/a": {}, "/b": {}}}
	short := Use{Volume: one, Type: "loop"}
	was, err := encode(long)
	must(t, err)
	is, err := encode(short)
	must(t, err)
	for n := range is {
		mixed := append(bytes.Clone(is[:n]), was[n:]...)
		got, err := decode[Use](mixed)
		if err == nil && !reflect.DeepEqual(got, long) && !reflect.DeepEqual(got, short) {
			t.Errorf("%d bytes of the new: %+v", n, got)
		}
	}
	if got, err := decode[Use](append(bytes.Clone(is), was[len(is):]...)); err != nil || !reflect.DeepEqual(got, short) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever is in a file, it is no record, or one whose ID can be part of a path.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":"` + one + `","name":"a","state":"ready","type":"loop","capacity":1}`))
	f.Add([]byte(`{"id":"../x"}`))
	for _, row := range []interface{ Key() string }{volume(one, "a"), Group{ID: "g-" + one[2:], State: Ready}, Use{Volume: one, Type: "loop"}} {
		var data []byte
		var err error
		switch row := row.(type) {
		case Volume:
			data, err = encode(row)
		case Group:
			data, err = encode(row)
		case Use:
			data, err = encode(row)
		}
		must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzRow[Volume](t, data)
		fuzzRow[Snapshot](t, data)
		fuzzRow[Group](t, data)
		fuzzRow[Use](t, data)
	})
}

// fuzzRow reads a row of one kind, which is written and read again as what it is.
func fuzzRow[T Row[T]](t *testing.T, data []byte) {
	row, err := decode[T](data)
	if err != nil {
		return
	}
	if id := row.Key(); !IsID(id) || filepath.Base(id) != id {
		t.Errorf("%q", id)
	}
	again, err := encode(row)
	if err != nil {
		return // it is longer with what JSON escapes
	}
	if got, err := decode[T](again); err != nil || got.Key() != row.Key() || got.Check() != nil {
		t.Errorf("%+v, %v; was %+v", got, err, row)
	}
}
