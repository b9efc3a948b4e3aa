package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/agent/record"
)

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var got string
	decode := func(version int, why error) func([]byte) (int, error) {
		return func(data []byte) (int, error) { got = string(data); return version, why }
	}
	if bad, err := record.Load(path, 1, decode(1, nil)); bad != nil || err != nil || got != "" {
		t.Errorf("without a file: %v, %v, %q", bad, err, got)
	}
	if err := record.Write(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := record.Write(path, 2); err != nil {
		t.Fatal(err)
	}
	if bad, err := record.Load(path, 1, decode(1, nil)); bad != nil || err != nil || got != "2" {
		t.Errorf("got %v, %v, %q", bad, err, got)
	}
	if bad, err := record.Load(path, 1, decode(2, nil)); bad != nil || err == nil {
		t.Errorf("of a later version: %v, %v", bad, err)
	}
	cut := errors.New("cut off")
	if bad, err := record.Load(path, 1, decode(0, cut)); !errors.Is(bad, cut) || err != nil {
		t.Errorf("cut off: %v, %v", bad, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it was not put aside: %v", err)
	}
	if b, err := os.ReadFile(path + ".bad"); err != nil || string(b) != "2" {
		t.Errorf("aside is %q, %v", b, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
