package release

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// maxEntries is how many entries an archive may have; a release has three.
const maxEntries = 64

// unpack takes the programs out of an archive as `make package` makes them: files of these names, at its top or in one
// directory. Other files are passed over, and whatever is no file refused. most is how many bytes all of it may come
// to.
func unpack(file, dir string, most int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	u := unpacking{dir: dir, left: most}
	bounded := &io.LimitedReader{R: zip, N: most + 1}
	if err := u.all(tar.NewReader(bounded)); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	// The checksum of gzip is after the last byte: what was cut off there is found by reading on.
	if _, err := io.Copy(io.Discard, bounded); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	if bounded.N <= 0 {
		return fmt.Errorf("unpack: it comes to more than %d bytes", most)
	}
	return nil
}

type unpacking struct {
	dir  string
	left int64 // bytes that files may still have
}

func (u *unpacking) all(t *tar.Reader) error {
	for range maxEntries {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.one(t, h); err != nil {
			return err
		}
	}
	return fmt.Errorf("it has more than %d entries", maxEntries)
}

func (u *unpacking) one(t *tar.Reader, h *tar.Header) error {
	name := path.Clean(h.Name)
	switch {
	case h.Typeflag == tar.TypeDir:
		return nil // directories are made here
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("%q is neither a file nor a directory", h.Name)
	case path.IsAbs(name) || !filepath.IsLocal(name):
		return fmt.Errorf("%q leads out of the archive", h.Name)
	}
	if top, below := path.Split(name); !slices.Contains(Programs, below) || path.Dir(path.Clean("/"+top)) != "/" {
		return nil
	}
	if h.Size <= 0 || h.Size > u.left {
		return fmt.Errorf("%q has %d bytes, and all programs together may have %d", h.Name, h.Size, maxPrograms)
	}
	u.left -= h.Size
	// Two of one name are refused: which of them was meant?
	f, err := os.OpenFile(filepath.Join(u.dir, path.Base(name)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, t, h.Size)
	return errors.Join(err, f.Close())
}
