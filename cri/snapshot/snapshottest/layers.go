package snapshottest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/berth-node/berth/cri/snapshot"
)

func layersStack(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) {
		write(t, dir+"/keep", "1")
		write(t, dir+"/change", "1")
		write(t, dir+"/drop", "1")
		write(t, dir+"/dir/old", "1")
	})
	Commit(t, s, "b", "a", func(dir string, w snapshot.Whiteouts) {
		write(t, dir+"/change", "2")
		remove(t, dir+"/drop", w)
		opaque(t, dir+"/dir", w)
		write(t, dir+"/dir/new", "2")
	})
	_, err := s.Begin(t.Context(), "b", "a")
	want(t, err, snapshot.ErrExists)
	if !s.Exists("a") || !s.Exists("b") || s.Exists("c") {
		t.Errorf("exists: got a %v, b %v, c %v", s.Exists("a"), s.Exists("b"), s.Exists("c"))
	}
	mounts, err := s.Prepare(t.Context(), "x", "b")
	dir := Mount(t, mounts, err)
	if got := read(t, dir+"/keep") + read(t, dir+"/change") + read(t, dir+"/dir/new"); got != "122" {
		t.Errorf("files: got %s, want 122", got)
	}
	absent(t, dir+"/drop")
	absent(t, dir+"/dir/old")
	mounts, err = s.View(t.Context(), "y", "a")
	if got := read(t, Mount(t, mounts, err)+"/change"); got != "1" {
		t.Errorf("lower layer: got %s, want 1", got)
	}
}

func missingParent(t *testing.T, s snapshot.Snapshotter) {
	_, err := s.Prepare(t.Context(), "x", "none")
	want(t, err, snapshot.ErrNotFound)
	_, err = s.View(t.Context(), "x", "none")
	want(t, err, snapshot.ErrNotFound)
	_, err = s.Usage(t.Context(), "none")
	want(t, err, snapshot.ErrNotFound)
	if !s.Independent() {
		_, err := s.Begin(t.Context(), "b", "a")
		want(t, err, snapshot.ErrNotFound)
		return
	}
	Commit(t, s, "b", "a", nil)
	if s.Exists("b") {
		t.Error("a layer exists without its parent")
	}
	_, err = s.Prepare(t.Context(), "x", "b")
	want(t, err, snapshot.ErrNotFound)
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	mounts, err := s.Prepare(t.Context(), "x", "b")
	if got := read(t, Mount(t, mounts, err)+"/f"); got != "1" {
		t.Errorf("file of the late parent: got %s, want 1", got)
	}
}

func twoFillOneLayer(t *testing.T, s snapshot.Snapshotter) {
	one, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	two, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	write(t, one.Dir()+"/f", "1")
	write(t, two.Dir()+"/f", "1")
	must(t, s.Clean(t.Context())) // leaves layers alone that are being filled
	must(t, two.Commit(t.Context()))
	must(t, one.Commit(t.Context()))
	must(t, one.Abort())
	must(t, two.Abort())
	mounts, err := s.View(t.Context(), "v", "a")
	if got := read(t, Mount(t, mounts, err)+"/f"); got != "1" {
		t.Errorf("file: got %s, want 1", got)
	}
}

func abort(t *testing.T, s snapshot.Snapshotter) {
	l, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	write(t, l.Dir()+"/f", "1")
	must(t, l.Abort())
	must(t, l.Abort())
	absent(t, l.Dir())
	if s.Exists("a") || l.Commit(t.Context()) == nil {
		t.Error("an aborted layer was committed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err = s.Begin(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	want(t, l.Commit(ctx), context.Canceled)
	must(t, l.Commit(t.Context()))
}

func manyLayers(t *testing.T, s snapshot.Snapshotter) {
	n := 200
	if !s.Independent() {
		n = 20 // each is a copy of all below
	}
	parent := ""
	for i := range n {
		key := fmt.Sprintf("sha256:%064d", i)
		Commit(t, s, key, parent, func(dir string, _ snapshot.Whiteouts) { write(t, fmt.Sprintf("%s/%d", dir, i), "1") })
		parent = key
	}
	mounts, err := s.Prepare(t.Context(), "x", parent)
	dir := Mount(t, mounts, err)
	files, err := os.ReadDir(dir)
	must(t, err)
	if len(files) != n {
		t.Errorf("files of %d layers: got %d", n, len(files))
	}
}
