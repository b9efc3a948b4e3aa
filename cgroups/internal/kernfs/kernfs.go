// Package kernfs reads and writes the small files of the kernel's control groups, with bare system calls: os.File would
// register each with the poller and allocate, for files that never block and live for microseconds.
package kernfs

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Write writes a value to a file that is there.
func Write(dir, name, value string) error {
	fd, err := Retry(func() (int, error) { return unix.Open(dir+"/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("open %s/%s: %w", dir, name, err)
	}
	defer unix.Close(fd)
	if _, err := Retry(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
		return fmt.Errorf("write %q to %s/%s: %w", value, dir, name, err)
	}
	return nil
}

// ReadInto reads a file that the kernel renders in one piece, as it does all but lists of processes, into buf, and
// returns how much there was. It is one read, as [Reader.Read] is.
func ReadInto(path string, buf []byte) (int, error) {
	fd, err := Retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	n, err := Retry(func() (int, error) { return unix.Pread(fd, buf, 0) })
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// Pread fills buf from the start of an open file.
func Pread(fd int, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		m, err := unix.Pread(fd, buf[n:], int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

// ReadString is the text of a small file without the white space around it.
func ReadString(path string) (string, error) {
	buf := make([]byte, 4096)
	n, err := ReadInto(path, buf)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// Reader reads one file after the other. The zero value is ready.
type Reader struct{ buf []byte }

// Read is the text of a file that the kernel renders in one piece, as it does all but lists of processes. It is one
// read, since asking for the end of a file has the kernel render it again.
func (r *Reader) Read(path string) (string, error) { return r.read(unix.AT_FDCWD, path) }

func (r *Reader) buffer() []byte {
	if r.buf == nil {
		r.buf = make([]byte, 16<<10)
	}
	return r.buf
}

func (r *Reader) read(at int, path string) (string, error) {
	fd, err := Retry(func() (int, error) { return unix.Openat(at, path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	for {
		n, err := Retry(func() (int, error) { return unix.Pread(fd, r.buffer(), 0) })
		if err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
		if n < len(r.buf) {
			return string(r.buf[:n]), nil
		}
		r.buf = make([]byte, 2*len(r.buf)) // io.stat has a line for each device
	}
}

// Exists says whether there is such a file or directory.
func Exists(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil
}

// Retry makes a system call again as long as a signal interrupts it.
func Retry(fn func() (int, error)) (int, error) {
	for {
		n, err := fn()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
