package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/snapshot"
)

type files = []imagetest.File

const (
	dirType = tar.TypeDir
	symlink = tar.TypeSymlink
	hard    = tar.TypeLink
)

// cell is a directory for a layer with canaries all around it.
type cell struct {
	dir, around string
	before      map[string]string
}

func newCell(t testing.TB) cell {
	t.Helper()
	around := t.TempDir()
	c := cell{around: around, dir: filepath.Join(around, "new", "7", "fs")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, canary := range []string{"canary", "new/canary", "new/7/canary", "new/7/dir/canary"} {
		p := filepath.Join(around, canary)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("sings"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	c.before = c.outside(t)
	return c
}

func (c cell) outside(t testing.TB) map[string]string {
	all := describe(t, c.around, true)
	inside, _ := filepath.Rel(c.around, c.dir)
	for name := range all {
		// Making fs changes the times of the directory it is in.
		if name == inside || strings.HasPrefix(name, inside+"/") || name == filepath.Dir(inside) {
			delete(all, name)
		}
	}
	return all
}

// check fails when anything outside was touched.
func (c cell) check(t testing.TB) {
	t.Helper()
	same(t, c.before, c.outside(t))
}

func apply(t testing.TB, dir string, w snapshot.Whiteouts, archive []byte) (Unpacked, error) {
	t.Helper()
	return Unpack(context.Background(), bytes.NewReader(archive), dir, Options{
		Whiteouts: w, Budget: NewBudget(64<<20, 10_000),
	})
}

// TestHostile: an archive is refused, or does something harmless; never does it touch what is not its own.
func TestHostile(t *testing.T) {
	needRoot(t)
	long := strings.Repeat("d/", 3000) + "f"
	for name, c := range map[string]struct {
		files  files
		refuse string // part of the error; "" = must work
		want   map[string]string
	}{
		"dot dot":           {files{{Name: "../canary", Body: "x"}}, "leads out", nil},
		"dot dot within":    {files{{Name: "a/../../canary", Body: "x"}}, "leads out", nil},
		"dot dot harmless":  {files{{Name: "a/../b", Body: "x"}}, "", map[string]string{"b": "x"}},
		"absolute":          {files{{Name: "/../../canary", Body: "x"}}, "leads out", nil},
		"absolute harmless": {files{{Name: "//etc//b", Body: "x"}}, "", map[string]string{"etc/b": "x"}},
		"link out, then through": {
			files{{Name: "l", Type: symlink, Link: "../dir"}, {Name: "l/canary", Body: "x"}}, "directory", nil,
		},
		"absolute link out": {
			files{{Name: "out", Type: symlink, Link: "/"}, {Name: "out/f", Body: "x"}},
			"",
			map[string]string{"f": "x"},
		}, // the root of the image
		"link to parents": {
			files{{Name: "up", Type: symlink, Link: "../../../../../.."}, {Name: "up/f", Body: "x"}},
			"",
			map[string]string{"f": "x"},
		},
		"link of links": {
			files{
				{Name: "a", Type: symlink, Link: "b"},
				{Name: "b", Type: symlink, Link: "a"},
				{Name: "a/f", Body: "x"},
			}, "too many levels", nil,
		},
		"directory over link": {
			files{{Name: "l", Type: symlink, Link: "/d"}, {Name: "d/"}, {Name: "l/"}, {Name: "l/f", Body: "x"}},
			"",
			map[string]string{"l/f": "x"},
		},
		"file over link": {
			files{{Name: "l", Type: symlink, Link: "../canary"}, {Name: "l", Body: "x"}},
			"",
			map[string]string{"l": "x"},
		},
		"hard link out":         {files{{Name: "h", Type: hard, Link: "../canary"}}, "leads out", nil},
		"hard link to absolute": {files{{Name: "h", Type: hard, Link: "/canary"}}, "no such file", nil},
		"hard link through link": {
			files{{Name: "l", Type: symlink, Link: "../../.."}, {Name: "h", Type: hard, Link: "l/canary"}},
			"no such file", nil,
		},
		"hard link to link, write": {
			files{
				{Name: "l", Type: symlink, Link: "../canary"},
				{Name: "h", Type: hard, Link: "l"},
				{Name: "h", Body: "x"},
			}, "", map[string]string{"h": "x"},
		},
		"hard link to directory": {files{{Name: "d/"}, {Name: "h", Type: hard, Link: "d"}}, "not permitted", nil},
		"hard link to root":      {files{{Name: "h", Type: hard, Link: "."}}, "not permitted", nil},
		"hard link to itself": {
			files{{Name: "h", Body: "x"}, {Name: "./h", Type: hard, Link: "/h"}}, "", map[string]string{"h": "x"},
		},
		"hard link twice": {
			files{{Name: "h", Body: "x"}, {Name: "i", Type: hard, Link: "h"}, {Name: "i", Type: hard, Link: "h"}},
			"",
			map[string]string{"h": "x", "i": "x"},
		},
		"hard link over directory": {
			files{{Name: "h", Body: "x"}, {Name: "d/e/f/"}, {Name: "d", Type: hard, Link: "h"}},
			"",
			map[string]string{"d": "x"},
		},
		"hard link from within": {
			files{{Name: "d/h", Body: "x"}, {Name: "d", Type: hard, Link: "d/h"}}, "no such file", nil,
		},
		"proc": {
			files{{Name: "p", Type: symlink, Link: "/proc/self/root"}, {Name: "p/canary", Body: "x"}}, "directory", nil,
		},
		"deletion of parent":       {files{{Name: ".wh..."}}, "leads out", nil},
		"deletion of dir's parent": {files{{Name: "a/.wh..."}}, "leads out", nil},
		"deletion of directory":    {files{{Name: "a/.wh.."}}, "leads out", nil},
		"deletion of nothing":      {files{{Name: ".wh."}}, "leads out", nil},
		"deletion through link": {
			files{{Name: "l", Type: symlink, Link: "../dir"}, {Name: "l/.wh.canary"}}, "directory", nil,
		},
		"opaque through link": {files{{Name: "l", Type: symlink, Link: ".."}, {Name: "l/.wh..wh..opq"}}, "", nil},
		"root is a link":      {files{{Name: ".", Type: symlink, Link: "/"}}, "not a directory", nil},
		"file as directory":   {files{{Name: "a", Body: "x"}, {Name: "a/b", Body: "x"}}, "not a directory", nil},
		"device as directory": {
			files{{Name: "a", Type: tar.TypeChar, Major: 1, Minor: 3}, {Name: "a/b", Body: "x"}},
			"not a directory",
			nil,
		},
		"directory over file": {
			files{{Name: "a", Body: "x"}, {Name: "a/"}, {Name: "a/b", Body: "y"}}, "", map[string]string{"a/b": "y"},
		},
		"file over directory": {
			files{{Name: "a/b/c", Body: "x"}, {Name: "a", Body: "y"}}, "", map[string]string{"a": "y"},
		},
		"link over directory": {
			files{
				{Name: "a/b", Body: "x"},
				{Name: "a", Type: symlink, Link: "c"},
				{Name: "c/"},
				{Name: "a/d", Body: "y"},
			}, "", map[string]string{"c/d": "y"},
		},
		"same twice": {
			files{{Name: "a", Body: "x"}, {Name: "a", Body: "y"}}, "", map[string]string{"a": "y"},
		},
		"name of 256 bytes":  {files{{Name: strings.Repeat("n", 256), Body: "x"}}, "name too long", nil},
		"name of 6000 bytes": {files{{Name: long, Body: "x"}}, "name too long", nil},
		"device number of 40 bits": {
			files{{Name: "d", Type: tar.TypeChar, Major: 1 << 32, Minor: 3}}, "invalid argument", nil,
		},
		"owner of 40 bits": {files{{Name: "d", UID: 1 << 32, Body: "x"}}, "invalid argument", nil},
		"owner -1":         {files{{Name: "d", UID: 1<<32 - 1, Body: "x"}}, "invalid argument", nil},
		"overlay's own xattrs": {
			files{{Name: "d/", PAX: map[string]string{
				"SCHILY.xattr.trusted.overlay.redirect": "/etc",
				"SCHILY.xattr.user.overlay.opaque":      "y", "SCHILY.xattr.trusted.x": "y",
			}}}, "", nil,
		},
		"bytes": {
			files{{Name: "a", Body: strings.Repeat("x", 1<<20)}, {Name: "b", Body: strings.Repeat("x", 64<<20)}},
			"more than this image may take", nil,
		},
		"time before the beginning": {files{{Name: "a", Body: "x", ModTime: time.Unix(-1<<40, 0)}}, "", nil},
		"time after the end":        {files{{Name: "a", Body: "x", ModTime: time.Unix(1<<40, 0)}}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, w := range []snapshot.Whiteouts{snapshot.WhiteoutsOverlay, snapshot.WhiteoutsApply} {
				cell := newCell(t)
				_, err := apply(t, cell.dir, w, imagetest.Tar(c.files))
				cell.check(t)
				if c.refuse == "" && err != nil || c.refuse != "" &&
					(err == nil || !strings.Contains(err.Error(), c.refuse)) {
					t.Errorf("error is %v, want %q", err, c.refuse)
				}
				for n, body := range c.want {
					p := filepath.Join(cell.dir, n)
					if st, err := os.Lstat(p); err != nil || !st.Mode().IsRegular() {
						t.Errorf("%s is not a file: %v, %v", n, st, err)
					} else if b, err := os.ReadFile(p); err != nil || string(b) != body {
						t.Errorf("%s is %q, %v; want %q", n, b, err, body)
					}
				}
				for n, line := range describe(t, cell.dir, false) {
					if strings.Contains(line, "overlay.redirect") || strings.Contains(line, "user.overlay") ||
						strings.Contains(line, "trusted.x") {
						t.Errorf("%s: %s", n, line)
					}
				}
			}
		})
	}
}

// rawHeader is an entry as no library would write it.
func rawHeader(name string, typ byte, size string) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x00")
	copy(h[108:], "0000000\x000000000\x00")
	copy(h[124:], size)
	copy(h[136:], "00000000000\x00        ")
	h[156] = typ
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

func TestBombs(t *testing.T) {
	needRoot(t)
	huge := "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"
	for name, c := range map[string]struct {
		archive []byte
		is      error
	}{
		"root is a file":     {rawHeader(".", tar.TypeReg, "00000000000\x00"), nil},
		"size of 8 exabytes": {rawHeader("a", tar.TypeReg, huge), ErrTooBig},
		"size and no data":   {rawHeader("a", tar.TypeReg, "00000400000\x00"), nil},
		"files":              {imagetest.Tar(many(20_000)), ErrTooBig},
		"zeros in gzip": {
			imagetest.Pack(imagetest.Gzip,
				append(rawHeader("a", tar.TypeReg, "00777777777\x00"), make([]byte, 200<<20)...)), ErrTooBig,
		},
		"zeros in zstd": {
			imagetest.Pack(imagetest.Zstd,
				append(rawHeader("a", tar.TypeReg, "00777777777\x00"), make([]byte, 200<<20)...)), ErrTooBig,
		},
		"zeros at the end": {imagetest.Pack(imagetest.Gzip, make([]byte, 200<<20)), nil},
		"cut gzip":         {imagetest.Pack(imagetest.Gzip, imagetest.Tar(many(3)))[:100], nil},
		"cut zstd":         {imagetest.Pack(imagetest.Zstd, imagetest.Tar(many(3)))[:100], nil},
		"noise":            {[]byte(strings.Repeat("noise", 1000)), nil},
		"gzip of noise":    {imagetest.Pack(imagetest.Gzip, []byte(strings.Repeat("noise", 1000))), nil},
		"deep": {
			imagetest.Tar(files{{Name: strings.Repeat("d/", 2000) + "f"}, {Name: "d", Body: "x"}}), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cell := newCell(t)
			_, err := apply(t, cell.dir, snapshot.WhiteoutsOverlay, c.archive)
			cell.check(t)
			if name == "deep" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error is %v, want %v", err, c.is)
			}
		})
	}
}

func many(n int) files {
	var all files
	for i := range n {
		all = append(all, imagetest.File{Name: fmt.Sprint("f", i)})
	}
	return all
}

// TestFullDisk: the error says so.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := apply(t, dir, snapshot.WhiteoutsOverlay,
		imagetest.Tar(files{{Name: "a", Body: strings.Repeat("x", 2<<20)}}))
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want %v", err, unix.ENOSPC)
	}
}

func TestCancel(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("no longer wanted")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	go func() {
		_, _ = w.Write(imagetest.Tar(files{{Name: "a", Body: strings.Repeat("x", 600<<10)}})[:500<<10])
		cancel(why)
		w.Close() // what a reader that obeys its context does
	}()
	_, err = Unpack(ctx, r, t.TempDir(), Options{Budget: NewBudget(1<<30, 100)})
	if !errors.Is(err, why) {
		t.Errorf("error is %v, want %v", err, why)
	}
}

func FuzzApply(f *testing.F) {
	needRoot(f)
	f.Add([]byte{}, false)
	for _, fs := range []files{
		{
			{Name: "a/b", Body: "x"},
			{Name: "a/.wh.b"},
			{Name: "a/.wh..wh..opq"},
			{Name: "a", Type: symlink, Link: ".."},
			{Name: "a/canary", Body: "y"},
		},
		{
			{Name: "l", Type: symlink, Link: "/../.."},
			{Name: "h", Type: hard, Link: "l/canary"},
			{Name: "p", Type: tar.TypeFifo},
			{Name: "d", Type: tar.TypeChar},
		},
		{
			{Name: strings.Repeat("long", 60), PAX: map[string]string{"SCHILY.xattr.user.x": "y"}},
			{Name: "d/", Type: dirType, Mode: 0o7777},
		},
	} {
		f.Add(imagetest.Tar(fs), false)
		f.Add(imagetest.Tar(fs), true)
		f.Add(imagetest.Pack(imagetest.Gzip, imagetest.Tar(fs)), true)
		f.Add(imagetest.Pack(imagetest.Zstd, imagetest.Tar(fs)), false)
	}
	f.Fuzz(func(t *testing.T, archive []byte, overlay bool) {
		w := snapshot.WhiteoutsApply
		if overlay {
			w = snapshot.WhiteoutsOverlay
		}
		cell := newCell(t)
		_, _ = Unpack(t.Context(), bytes.NewReader(archive), cell.dir, Options{
			Whiteouts: w, Budget: NewBudget(1<<20, 100),
		})
		cell.check(t)
	})
}
