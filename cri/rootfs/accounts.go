package rootfs

import (
	"bufio"
	"io"
	"iter"
	"strconv"
	"strings"
)

// User is a line of /etc/passwd.
type User struct {
	Name     string
	UID, GID uint32
	Home     string // "": the line has none
}

// Group is a line of /etc/group.
type Group struct {
	Name    string
	GID     uint32
	Members []string
}

// MaxID is the highest id that a process can have.
const MaxID = 1<<32 - 2

// Users are those of an /etc/passwd. Lines that cannot be read are skipped, as libc does, and such with an id that
// setresuid(2) would take for "stay who you are".
func Users(passwd io.Reader) iter.Seq[User] {
	return func(yield func(User) bool) {
		for f := range lines(passwd, 4) {
			u := User{Name: f[0]}
			var ok1, ok2 bool
			u.UID, ok1 = id(f[2])
			u.GID, ok2 = id(f[3])
			if u.Name == "" || !ok1 || !ok2 {
				continue
			}
			if len(f) > 5 {
				u.Home = f[5]
			}
			if !yield(u) {
				return
			}
		}
	}
}

// Groups are those of an /etc/group, read in the same way.
func Groups(group io.Reader) iter.Seq[Group] {
	return func(yield func(Group) bool) {
		for f := range lines(group, 3) {
			g := Group{Name: f[0]}
			var ok bool
			if g.GID, ok = id(f[2]); !ok || g.Name == "" {
				continue
			}
			if len(f) > 3 && f[3] != "" {
				g.Members = strings.Split(f[3], ",")
			}
			if !yield(g) {
				return
			}
		}
	}
}

func id(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n <= MaxID
}

// lines ranges over the lines with at least n fields, up to one of a megabyte, which nobody has written in earnest.
func lines(r io.Reader, n int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			line := strings.TrimSpace(sc.Text())
			if line == "" || line[0] == '#' || strings.Contains(line, "\x00") {
				continue
			}
			if f := strings.Split(line, ":"); len(f) >= n && !yield(f) {
				return
			}
		}
	}
}
