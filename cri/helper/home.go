package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/rootfs"
)

const passwdPath = "/etc/passwd"

// setHome says where the program's user is at home, unless its environment does.
// Else libcontainer's init looks in the container's /etc/passwd, opens whatever
// is there, and of a FIFO waits for somebody to write. This is before there is a
// container, from outside; program_home of program.c does it for who enters one,
// with the file as it is by then, and from inside, where a file system of the
// container's that never answers holds up nobody else.
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
		for u := range rootfs.Users(io.LimitReader(f, rootfs.MaxFile)) {
			if u.UID != p.User.UID {
				continue
			}
			if u.Home != "" {
				home = u.Home
			}
			break
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
	f, err := rootfs.Open(in, path)
	if err != nil {
		return nil
	}
	return f
}
