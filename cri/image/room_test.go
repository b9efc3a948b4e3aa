package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/image/layer"
)

// padded is an image whose layer has many bytes that no archive is made of: a frame of zstd that is to be skipped.
func padded(name string, bytes int) *imagetest.Image {
	img := imagetest.Build(imagetest.Spec{Name: name, Packing: imagetest.Zstd, Layers: []files{{{Name: name}}}})
	frame := binary.LittleEndian.AppendUint32([]byte("\x50\x2a\x4d\x18"), uint32(bytes))
	noise := make([]byte, bytes)
	_, _ = rand.New(rand.NewSource(1)).Read(noise)
	l := &img.Layers[0]
	l.Data = slices.Concat(l.Data, frame, noise)
	l.Desc.Digest, l.Desc.Size = digest.FromBytes(l.Data), int64(len(l.Data))
	img.SetManifest(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: img.Type,
		Config: ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageConfig, Digest: digest.Digest(img.ID), Size: int64(len(img.Config)),
		},
		Layers: []ocispec.Descriptor{l.Desc},
	})
	return img
}

// TestPackedRoom: what comes of a layer takes room as well, whether anything is unpacked of it or not.
func TestPackedRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // a sync of the layers may be on its way
			t.Error(err)
		}
	}()
	w, err := openWorld(dir, func(c *Config) { c.MaxFill = 0.5 })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "others"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r := imagetest.NewRegistry(t)
	for size, want := range map[int]error{1 << 20: nil, 3 << 20: layer.ErrTooBig, 16 << 20: layer.ErrNeverFits} {
		name, err := imagetest.Push(r.Host, padded(fmt.Sprint("padded:v", size), size))
		if err != nil {
			t.Fatal(err)
		}
		r.Requests()
		if _, err := w.Pull(t.Context(), name, nil, nil); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
		if got := requests(r); want != nil && strings.Count(got, "GET") > 2 { // the manifest and the configuration
			t.Errorf("%d bytes are fetched: %s", size, got)
		}
		if left := w.left(t); strings.Contains(left, "ingest") {
			t.Errorf("left of %d bytes:\n%s", size, left)
		}
	}
}

// TestReadSmall: what is read as a whole is small, whatever is kept under the digest that somebody has written down.
func TestReadSmall(t *testing.T) {
	w := newWorld(t)
	c := w.pulls.content
	small, large := make([]byte, maxConfig), make([]byte, maxConfig+1)
	for _, body := range [][]byte{small, large} {
		if err := c.write(digest.FromBytes(body), body); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := c.read(digest.FromBytes(small)); err != nil || len(b) != len(small) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if b, err := c.read(digest.FromBytes(large)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if got := c.size([]digest.Digest{digest.FromBytes(large)}); got != int64(len(large)) {
		t.Errorf("of somebody's layer %d bytes are left", got)
	}
}

// TestDamagedFile: an image whose record is lost and whose file is damaged loses its names, and nothing else. Who pulls
// it again fetches no layer; when somebody has removed the file, it goes.
func TestDamagedFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
	dir := t.TempDir()
	r, names := served(t, twoLayers)
	open := func() *world {
		w, err := openWorld(dir, func(c *Config) { c.KeepPartial = 1 })
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	lose := func(w *world, how func() error) *world {
		t.Helper()
		if err := errors.Join(w.close(), os.Remove(filepath.Join(dir, "runtime.db")), how()); err != nil {
			t.Fatal(err)
		}
		w = open()
		if got := w.List(); len(got) > 0 {
			t.Errorf("found again: %+v", got)
		}
		if err := w.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := open()
	img := mustPull(t, w, names[0])
	file, err := w.images.labels.path(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	halve := func() error {
		st, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, st.Size()/2)
	}
	w = lose(w, halve)
	r.Requests()
	if again := mustPull(t, w, names[0]); again.ID != img.ID || w.show(t, again, "etc/a") != "two" {
		t.Errorf("%+v", again)
	}
	if got := requests(r); got != "GET v1" { // the configuration is here too
		t.Errorf("requests: %s", got)
	}
	if err := errors.Join(w.Remove(t.Context(), names[0]), w.Collect(t.Context())); err != nil || w.left(t) != "" {
		t.Errorf("%v, left:\n%s", err, w.left(t))
	}
	mustPull(t, w, names[0])
	w = lose(w, halve)
	if w.left(t) == "" {
		t.Error("nothing is left")
	}
	w = lose(w, func() error { return os.Remove(file) })
	if left := w.left(t); left != "" {
		t.Errorf("left:\n%s", left)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}
