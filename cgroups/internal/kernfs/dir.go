package kernfs

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. By it the kernel finds what is in there at once: the way from the root to a file of a group
// costs it more than to open the file. The zero value is none, in which nothing is.
type Dir struct {
	fd    int    // one more than the descriptor
	below string // the way from there, which ends with a slash; "": it is the directory itself
}

// OpenDir opens a directory, to find files in.
func OpenDir(path string) Dir { return openDirAt(unix.AT_FDCWD, path) }

func openDirAt(at int, path string) Dir {
	fd, err := Retry(func() (int, error) { return unix.Openat(at, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return Dir{}
	}
	return Dir{fd: fd + 1}
}

// List opens a directory and names the directories in it, in the kernel's order. Files, of which a group has dozens,
// are passed over without a look.
func (r *Reader) List(path string) (Dir, []string) {
	fd, err := Retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return Dir{}, nil
	}
	var out []string
	for {
		n, err := Retry(func() (int, error) { return unix.Getdents(fd, r.buffer()) })
		if err != nil || n <= 0 {
			return Dir{fd: fd + 1}, out
		}
		out = directories(r.buf[:n], out)
	}
}

// directories are those among entries as getdents64 has them: inode and offset of 8 bytes each, the length of the entry
// in 2, its type in one, and the name to a zero.
func directories(entries []byte, out []string) []string {
	const head = 19
	for len(entries) > head {
		size := int(binary.NativeEndian.Uint16(entries[16:]))
		if size <= head || size > len(entries) {
			return out
		}
		name, _, _ := bytes.Cut(entries[head:size], []byte{0})
		if entries[18] == unix.DT_DIR && string(name) != "." && string(name) != ".." {
			out = append(out, string(name))
		}
		entries = entries[size:]
	}
	return out
}

// Open says whether there is one.
func (d Dir) Open() bool { return d.fd > 0 }

// Sub opens a directory in it.
func (d Dir) Sub(name string) Dir {
	if !d.Open() {
		return Dir{}
	}
	return openDirAt(d.fd-1, d.below+name)
}

// In is a directory in it that is not opened, and need not be there: where few things are looked for in it, to open and
// to close it costs more than one name more on the way to each. It is good as long as d is.
func (d Dir) In(name string) Dir {
	if !d.Open() {
		return Dir{}
	}
	return Dir{d.fd, d.below + name + "/"}
}

// Close closes it.
func (d Dir) Close() {
	if d.Open() && d.below == "" {
		_ = unix.Close(d.fd - 1) // it was not written to
	}
}

// Stat is the inode of a directory in it, and how many directories are in that, which kernfs counts; false: there is
// none.
func (d Dir) Stat(name string) (inode uint64, subdirs int, ok bool) {
	if !d.Open() {
		return 0, 0, false
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd-1, d.below+name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, 0, false
	}
	// Its own two names, and each of theirs for it.
	return st.Ino, int(st.Nlink) - 2, true
}

// ReadAt is [Reader.Read] of a file in a directory.
func (r *Reader) ReadAt(d Dir, name string) (string, error) {
	if !d.Open() {
		return "", fmt.Errorf("open %s: %w", name, unix.ENOENT)
	}
	return r.read(d.fd-1, d.below+name)
}

// ReadAllAt is the text of a file that the kernel renders in pieces.
func (r *Reader) ReadAllAt(d Dir, name string) ([]byte, error) {
	if !d.Open() {
		return nil, fmt.Errorf("open %s: %w", name, unix.ENOENT)
	}
	fd, err := Retry(func() (int, error) { return unix.Openat(d.fd-1, d.below+name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	var out []byte
	for {
		n, err := Retry(func() (int, error) { return unix.Read(fd, r.buffer()) })
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if n == 0 {
			return out, nil
		}
		out = append(out, r.buf[:n]...)
	}
}
