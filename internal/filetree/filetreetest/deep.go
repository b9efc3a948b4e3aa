// Package filetreetest makes trees that are deeper than descriptors last.
package filetreetest

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Nest makes directories of that name in each other, with a file of so many bytes in every hundredth, and returns how
// many files.
func Nest(t testing.TB, dir, name string, depth int, size int64) (files int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range depth {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
		if i%100 != 0 {
			continue
		}
		f, err := unix.Openat(fd, "file", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		must(t, err)
		_, err = unix.Write(f, make([]byte, size))
		must(t, errors.Join(err, unix.Close(f)))
		files++
	}
	unix.Close(fd)
	return files
}

// FewFiles leaves the process only so many more descriptors than it has, until the test ends or undo is called.
func FewFiles(t testing.TB, more int) (undo func()) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var was syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	few := was
	few.Cur = uint64(len(open) + more)
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	undo = func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }
	t.Cleanup(undo)
	return undo
}
