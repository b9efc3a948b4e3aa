package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/cri/store"
)

type single struct{ Name string }

func TestSingleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	var got single
	if err := store.ReadFile(path, "pods", "a", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for _, name := range []string{"first", "second"} {
		row, err := store.Encode(single{name})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.WriteFile(path, "pods", "a", row); err != nil {
			t.Fatal(err)
		}
		if err := store.ReadFile(path, "pods", "a", &got); err != nil || got.Name != name {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if err := store.ReadFile(path, "pods", "b", &got); err == nil {
		t.Error("it is the record of another key")
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-3] ^= 1
	for name, b := range map[string][]byte{"empty": nil, "cut off": whole[:len(whole)-2], "halved": whole[:len(whole)/2], "zeros": make([]byte, len(whole)), "flipped": flipped} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.ReadFile(path, "pods", "a", &got); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
