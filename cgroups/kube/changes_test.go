package kube

import (
	"context"
	"os"
	"testing"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// What somebody writes is told, what is no setting is not.
func TestChanges(t *testing.T) {
	tree, h, _ := testTree(t)
	pod := podOf(container("a", list("cpu", "500m"), nil))
	pod.UID = "changes"
	path, err := tree.EnsurePod(pod)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tree.Changes()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if err := c.Add(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	got, end := make(chan string, 100), make(chan error)
	go func() { end <- c.Run(ctx, func(group, file string) { got <- group + " " + file }) }()
	for _, f := range h.ProcsFiles(path) {
		_ = os.WriteFile(f, []byte("0"), 0)
	}
	defer func() {
		for _, f := range h.ProcsFiles("/") {
			_ = os.WriteFile(f, []byte("0"), 0)
		}
	}()
	file := "cpu.shares"
	if h.Mode() == cgroups.Unified {
		file = "cpu.weight"
	}
	if err := kernfs.Write(h.Dir("cpu", path), file, "777"); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != path+" "+file {
		t.Errorf("told of %q", s)
	}
	c.Remove(path)
	cancel()
	if err := <-end; err != nil {
		t.Error(err)
	}
	if len(got) != 0 {
		t.Errorf("also told of %q", <-got)
	}
}
