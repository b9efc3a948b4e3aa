package api

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestSocketWatch(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := WatchSocket(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if w.Gone() {
		t.Error("it is gone at first")
	}
	path := filepath.Join(dir, SocketName)
	for what, remove := range map[string]func() error{
		"removed":  func() error { return os.Remove(path) },
		"moved":    func() error { return os.Rename(path, path+".old") },
		"replaced": func() error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		for !w.Gone() {
			<-w.Changed
		}
		if l, err = Listen(dir); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer l.Close()
		w.Replaced()
		if w.Gone() {
			t.Errorf("%s: it is gone when it is made again", what)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		c.Close()
	}
}
