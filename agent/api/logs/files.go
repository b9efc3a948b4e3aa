package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// open opens every file of the log at path, oldest first. The files may be rotated while they are opened: what vanished
// was the oldest, which the writer has thrown away.
func open(path string) ([]*os.File, error) {
	// The current file is opened before the others are listed. Rotated in between, it is found a second time, under its
	// new name, and that is its place.
	cur, err := openFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open log: %w", err)
	}
	names, err := rotated(path)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, name := range names {
		f, err := openFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			closeAll(append(files, cur))
			return nil, fmt.Errorf("open rotated log: %w", err)
		}
		if cur != nil && inode(f) == inode(cur) {
			cur.Close()
			cur = nil
		}
		files = append(files, f)
	}
	if cur != nil {
		files = append(files, cur)
	}
	return files, nil
}

// openFile opens a plain file. Whoever has the directory of logs mounted could put a FIFO there, whose opening would
// wait for ever.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("it is no plain file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// rotated returns the names of the rotated files of the log at path, oldest first. Compressed ones are left out: they
// belong to somebody else's rotation.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("list rotated logs: %w", err)
	}
	var names []string
	prefix := filepath.Base(path) + "."
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && !strings.HasSuffix(e.Name(), ".gz") &&
			!strings.HasSuffix(e.Name(), ".tmp") {
			names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// after returns the file that goes on where the file of inode done ended, or nil while done is the current one.
func after(path string, done uint64) (*os.File, error) {
	files, err := open(path)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	defer func() { closeAll(files) }()
	i := slices.IndexFunc(files, func(f *os.File) bool { return inode(f) == done })
	next := i + 1 // when done is gone, the oldest that is left
	if next == len(files) {
		return nil, nil
	}
	f := files[next]
	files = slices.Delete(files, next, next+1)
	return f, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func inode(f *os.File) uint64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// tailBlock is what is read at once when a file is read from its end.
const tailBlock = 64 << 10

// tail seeks the files to the beginning of the last n lines of the log as people see it, in which the pieces of a line
// that the writer cut are one, and returns the files from that one on; those before it are closed.
func tail(files []*os.File, n int64) ([]*os.File, error) {
	left := n
	for i, f := range slices.Backward(files) {
		off, err := tailOffset(f, &left, i == len(files)-1)
		if err == nil && left < 0 {
			_, err = f.Seek(off, io.SeekStart)
		}
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("read log backwards: %w", err)
		}
		if left < 0 {
			closeAll(files[:i])
			return files[i:], nil
		}
	}
	return files, nil
}

// tailOffset goes from the end of f back over whole lines, counting left down, until it is negative: then a line too
// many was met, and the offset returned is the one after its end.
func tailOffset(f *os.File, left *int64, last bool) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	lineEnd := int64(-1) // offset after the line that is being walked back over
	first := last
	buf := make([]byte, tailBlock)
	visit := func(start int64) (bool, error) {
		whole, err := endsLine(f, start)
		if err != nil {
			return false, err
		}
		if whole || first {
			*left--
		}
		first = false
		return *left < 0, nil
	}
	for pos := end; pos > 0; {
		size := min(pos, tailBlock)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' {
				continue
			}
			if lineEnd >= 0 {
				if done, err := visit(pos + i + 1); done || err != nil {
					return lineEnd, err
				}
			}
			lineEnd = pos + i + 1
		}
	}
	if lineEnd >= 0 {
		if done, err := visit(0); done || err != nil {
			return lineEnd, err
		}
	}
	return 0, nil
}

// endsLine says whether the entry that begins at off ends a line: whether its tag is not P.
func endsLine(f *os.File, off int64) (bool, error) {
	var head [64]byte // longer than a time, a stream and a tag
	n, err := f.ReadAt(head[:], off)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	e, err := parse(head[:n])
	return err != nil || !e.Partial, nil
}
