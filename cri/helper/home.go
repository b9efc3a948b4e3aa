package main

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	passwdPath = "/etc/passwd"
	// maxPasswd is how much of such a file is read. It is anybody's.
	maxPasswd = 4 << 20
)

// setHome says where the program's user is at home, unless its environment does.
// Else libcontainer's init looks in the container's /etc/passwd, opens whatever
// is there, and of a FIFO waits for somebody to write.
func setHome(spec *specs.Spec, root string) {
	p := spec.Process
	home := ""
	for _, e := range p.Env {
		if h, ok := strings.CutPrefix(e, "HOME="); ok {
			home = h // the last one counts
		}
	}
	if home != "" {
		return
	}
	home = "/"
	if f := openPasswd(spec.Mounts, root); f != nil {
		defer f.Close()
		if h := homeIn(io.LimitReader(f, maxPasswd), p.User.UID); h != "" {
			home = h
		}
	}
	p.Env = append(p.Env, "HOME="+home)
}

// openPasswd opens the container's /etc/passwd, nil where it will have none that
// is a file. What is mounted last covers what was there.
func openPasswd(mounts []specs.Mount, root string) *os.File {
	in, path := root, passwdPath
	for _, m := range mounts {
		d := filepath.Clean("/" + m.Destination)
		below, under := strings.CutPrefix(passwdPath, strings.TrimSuffix(d, "/")+"/")
		switch {
		case d != passwdPath && !under:
		case m.Type != "bind":
			in = "" // it is empty
		case d == passwdPath:
			in, path = m.Source, ""
		default:
			in, path = m.Source, below
		}
	}
	if in == "" {
		return nil
	}
	// Only to look at it: the mere opening of a device does something to it.
	fd, err := unix.Open(in, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { unix.Close(fd) }()
	if path != "" {
		below, err := openBelow(fd, path)
		if err != nil {
			return nil
		}
		unix.Close(fd)
		fd = below
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	return f
}

// openBelow looks a path up that no symlink leads out of dir.
func openBelow(dir int, path string) (fd int, err error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 16 { // it fails so when a rename races with it
		if fd, err = unix.Openat2(dir, path, &how); err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return fd, err
}

// homeIn is the home of a user in a file of seven fields a line.
func homeIn(passwd io.Reader, uid uint32) string {
	lines := bufio.NewScanner(passwd)
	lines.Buffer(nil, maxPasswd)
	for lines.Scan() {
		f := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(f) < 6 {
			continue
		}
		if n, err := strconv.ParseUint(f[2], 10, 32); err == nil && uint32(n) == uid {
			return f[5]
		}
	}
	return ""
}
