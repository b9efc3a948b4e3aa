package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHelperVersion has helpers of this build, of another one, of one that knew no versions, and none.
func TestHelperVersion(t *testing.T) {
	for script, want := range map[string]string{
		"echo berth-helper " + version:                     "",
		"echo berth-helper 0.0.9":                          "another version",
		"echo 'started by berth, not by hand' >&2; exit 2": "install berth and berth-helper together",
		"echo hello": "does not tell its version",
	} {
		path := filepath.Join(t.TempDir(), "berth-helper")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		tellHelper(t.Context(), path, version, slog.New(slog.NewTextHandler(&said, nil)))
		if (said.Len() == 0) != (want == "") || !strings.Contains(said.String(), want) || said.Len() > 1000 {
			t.Errorf("%s: %.1000s", script, said.String())
		}
	}
	var said bytes.Buffer
	tellHelper(t.Context(), t.TempDir()+"/none", version, slog.New(slog.NewTextHandler(&said, nil)))
	if !strings.Contains(said.String(), "no such file") {
		t.Errorf("%s", said.String())
	}
}
