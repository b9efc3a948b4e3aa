// Package resident has a process that idles be as small as what it uses.
package resident

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DropProgram takes those pages of this program's file out of the process that nothing has used for a while. The
// kernel maps sixteen around each that is used, so that a start and a burst of work leave most of the program mapped.
// A process that idles needs a quarter of it, and comes back to that by faults that find the file in memory, a
// millisecond of them in all. The file's pages stay in the page cache, where those that nobody has mapped are the
// first that the kernel takes.
func DropProgram() error {
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("drop pages of the program: %w", err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("drop pages of the program: %w", err)
	}
	defer f.Close()
	var m mapping
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0:
		case words[0] == "Anonymous:":
			// What was written to, as by a debugger that has set a breakpoint or by whoever moves a program to its
			// address, is not in the file, and would be lost.
			if m.ofFile(own) && len(words) > 1 && words[1] == "0" {
				if err := m.drop(); err != nil {
					return fmt.Errorf("drop pages of the program: %w", err)
				}
			}
			m = mapping{}
		case !strings.HasSuffix(words[0], ":"):
			m = parseMapping(words)
		}
	}
	return nil
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end  uintptr
	perms, file string
}

func parseMapping(words []string) mapping {
	if len(words) < 6 {
		return mapping{} // of no file
	}
	from, to, _ := strings.Cut(words[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err != nil || err2 != nil || start >= end {
		return mapping{}
	}
	return mapping{uintptr(start), uintptr(end), words[1], strings.Join(words[5:], " ")}
}

// ofFile says whether the mapping is of a file, private, and cannot be written to.
func (m mapping) ofFile(path string) bool {
	return m.file == path && len(m.perms) == 4 && m.perms[1] == '-' && m.perms[3] == 'p'
}

func (m mapping) drop() error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	if errno != 0 {
		return os.NewSyscallError("madvise", errno)
	}
	return nil
}
