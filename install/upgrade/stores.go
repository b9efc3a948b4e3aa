package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// Bounds of the stores that are copied. They are records; a node of a thousand pods has some megabytes of them.
const (
	maxStoreFiles = 200_000
	maxStoreBytes = 4 << 30
)

// copies are the copies of stores, each under its number.
type copies struct {
	dir    string
	before func(change string)
}

// save copies the stores; only a whole copy has the name.
func (o copies) save(stores []string) error {
	part := o.dir + atomicfile.Part
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(o.dir)); err != nil {
		return fmt.Errorf("copy stores: %w", err)
	}
	if err := os.Mkdir(part, 0o700); err != nil {
		return fmt.Errorf("copy stores: %w", err)
	}
	c := copier{files: maxStoreFiles, bytes: maxStoreBytes}
	for i, s := range stores {
		o.before("save")
		if err := c.tree(s, filepath.Join(part, strconv.Itoa(i))); err != nil {
			return errors.Join(fmt.Errorf("copy store %s: %w", s, err), os.RemoveAll(part))
		}
	}
	err := os.Rename(part, o.dir)
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(o.dir))
	}
	if err != nil {
		return fmt.Errorf("copy stores: %w", err)
	}
	return nil
}

// restore makes the stores what they were, file by file, and removes files that were not there. It can be repeated.
func (o copies) restore(stores []string) error {
	if _, err := os.Stat(o.dir); err != nil {
		return fmt.Errorf("put stores back: %w", err)
	}
	for i, s := range stores {
		from := filepath.Join(o.dir, strconv.Itoa(i))
		c := copier{files: maxStoreFiles, bytes: maxStoreBytes}
		o.before("prune")
		err := prune(s, from)
		o.before("put back")
		if err == nil {
			err = c.tree(from, s)
		}
		if err != nil {
			return fmt.Errorf("put store %s back: %w", s, err)
		}
	}
	return nil
}

// copier copies trees of files, until it has copied too much.
type copier struct{ files, bytes int64 }

// tree copies a file, or the files of a directory. What is not there is not copied; what is neither file nor directory
// is nobody's record.
func (c *copier) tree(from, to string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c.files--
	switch {
	case c.files < 0:
		return fmt.Errorf("there are more than %d files", maxStoreFiles)
	case st.Mode().IsRegular():
		if c.bytes -= st.Size(); c.bytes < 0 {
			return fmt.Errorf("the files have more than %d bytes", int64(maxStoreBytes))
		}
		return copyFile(from, to, st.Mode().Perm())
	case !st.IsDir():
		return nil
	}
	if err := os.Mkdir(to, st.Mode().Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.tree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(to)
}

// prune removes the files below path that its copy does not have.
func prune(path, copied string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	was, err := os.Lstat(copied)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch {
	case st.Mode().IsRegular() && (was == nil || !was.Mode().IsRegular()):
		return os.Remove(path)
	case !st.IsDir():
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := prune(filepath.Join(path, e.Name()), filepath.Join(copied, e.Name())); err != nil {
			return err
		}
	}
	if was == nil {
		_ = os.Remove(path) // where it is empty now
	}
	return nil
}

// copyFile copies a file as a whole: to is what it was, or what it is to be.
func copyFile(from, to string, mode fs.FileMode) (err error) {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	part := to + atomicfile.Part
	dst, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chmod(mode), dst.Sync(), dst.Close())
	if err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		_ = os.Remove(part) // on a full disk a half would be in everybody's way
	}
	return err
}

// digestOf is the SHA-256 digest of a file, in hex; "" when there is none.
func digestOf(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return "", err
	} else if !st.Mode().IsRegular() {
		return "", errors.New("it is no file")
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
