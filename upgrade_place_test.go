package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/config"
)

// TestPlaceOfUpgrade: the stores that are copied are those of the agent, wherever its settings have been read.
func TestPlaceOfUpgrade(t *testing.T) {
	run, root := t.TempDir(), t.TempDir()
	was := config.Default().Place
	was.RunDir, was.RootDir = run, root
	if err := was.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := was.Save(); err != nil {
		t.Fatal(err)
	}
	if p, err := (&upgrading{runDir: run}).place(); err != nil || p.RootDir != root || p.RunDir != run {
		t.Errorf("%s, %s, %v", p.RootDir, p.RunDir, err)
	}
	if p, err := (&upgrading{runDir: run, rootDir: "/said"}).place(); err != nil || p.RootDir != "/said" {
		t.Errorf("with --root-dir: %s, %v", p.RootDir, err)
	}
	if err := os.WriteFile(filepath.Join(run, config.PlaceFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&upgrading{runDir: run}).place(); err == nil || !strings.Contains(err.Error(), "--root-dir says") {
		t.Errorf("with a damaged file: %v", err)
	}
	if p, err := (&upgrading{runDir: t.TempDir()}).place(); err != nil || p.RootDir != config.Default().RootDir {
		t.Errorf("where nothing is known: %s, %v", p.RootDir, err)
	}
}
