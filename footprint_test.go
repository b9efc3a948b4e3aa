package main

import (
	"os"
	"testing"

	"github.com/berth-node/berth/agent/config"
)

// TestFootprintDocument compares docs/footprint.md with what the code makes.
func TestFootprintDocument(t *testing.T) {
	p := config.Default().Place
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	want := footprintDocument(footprint(p))
	has, err := os.ReadFile("docs/footprint.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(has) != want {
		t.Errorf("docs/footprint.md is not what `berth footprint -o markdown` prints:\n%s", want)
	}
	known := map[string]bool{}
	for _, k := range traceKinds {
		known[k.kind] = true
	}
	for _, tr := range footprint(p) {
		if !known[tr.Kind] || tr.Name == "" || tr.What == "" {
			t.Errorf("%+v", tr)
		}
	}
}
