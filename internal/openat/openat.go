// Package openat opens files below a directory in ways that the kernel watches over (openat2(2)).
package openat

import (
	"errors"

	"golang.org/x/sys/unix"
)

// tries bounds how often a walk begins again. One takes microseconds, and somebody may rename files without end.
const tries = 1000

// Open is openat2(2), which gives up a walk through ".." that must not leave dir when anything on the machine is
// renamed or mounted meanwhile: it cannot vouch then for where that leads (EAGAIN). Such a walk begins again. Somebody
// who renames on and on can make it fail in the end, with EAGAIN.
func Open(dir int, path string, how *unix.OpenHow) (fd int, err error) {
	for range tries {
		if fd, err = unix.Openat2(dir, path, how); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, err
}
