package keeper

import (
	"bytes"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// asked is how many keepers are asked for the binary they execute: nearly always the first has the one that is wanted.
const asked = 3

// sharedHelper returns the sealed memfd that a live keeper executes, if its content is that of src; nil otherwise.
func sharedHelper(src *os.File, keepers []string) *os.File {
	tried := 0
	for _, dir := range keepers {
		ident, err := readIdentity(dir)
		if err != nil {
			continue
		}
		if tried++; tried > asked {
			break
		}
		// The process is checked after its binary was opened: until then the number was its own.
		f, err := os.Open("/proc/" + strconv.Itoa(ident.pid) + "/exe")
		if err != nil {
			continue
		}
		if alive, err := ident.alive(); err == nil && alive && unwritable(f) && same(f, src) {
			return f
		}
		f.Close()
	}
	return nil
}

// unwritable says whether nobody can change the file any more. Only memfds have seals.
func unwritable(f *os.File) bool {
	const need = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	fd, err := rawFd(f)
	if err != nil {
		return false
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&need == need
}

// same compares files from their beginning, without moving in either.
func same(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	if err != nil || x.Size() != y.Size() {
		return false
	}
	bufs := make([]byte, 2*chunk)
	p, q := bufs[:chunk], bufs[chunk:]
	for off := int64(0); off < x.Size(); off += chunk {
		n, err := a.ReadAt(p, off)
		if err != nil && err != io.EOF {
			return false
		}
		m, err := b.ReadAt(q, off)
		if err != nil && err != io.EOF || !bytes.Equal(p[:n], q[:m]) {
			return false
		}
	}
	return true
}

const chunk = 64 << 10
