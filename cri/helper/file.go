package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// fileBind is a file of the host that a container sees in the place of one of
// its own: /etc/hosts and the like. Init binds it, in its own mount namespace
// and before libcontainer takes the root as it is, with all that is mounted in
// it. libcontainer looks up every place three times and checks each step, in
// a hundred system calls a file. Here the place has been looked up once, and
// nothing of the container runs yet that could move it.
type fileBind struct {
	Source, Target string
	ReadOnly       bool
}

// takeFiles takes out of mounts the files that init can bind, and gives each a
// place below root. The order of mounts matters where one is below another: so a
// file is taken only as long as nothing comes before it but what is the same in
// all containers, and is not in the way of it.
func takeFiles(mounts []specs.Mount, root string) (files []fileBind, rest []specs.Mount) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, mounts // libcontainer will tell
	}
	defer unix.Close(dir)
	for i, m := range mounts {
		if isSystem(m.Destination) {
			rest = append(rest, m)
			continue
		}
		if !isFile(m) {
			return files, append(rest, mounts[i:]...)
		}
		if !place(dir, m.Destination) {
			rest = append(rest, m)
			continue
		}
		files = append(files, fileBind{
			m.Source, filepath.Join(root, filepath.Clean("/"+m.Destination)), slices.Contains(m.Options, "ro"),
		})
	}
	return files, rest
}

// isSystem says that path is where the machine shows itself.
func isSystem(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first == "proc" || first == "dev" || first == "sys"
}

func isFile(m specs.Mount) bool {
	if m.Type != "bind" || len(m.UIDMappings)+len(m.GIDMappings) > 0 || !slices.Contains(m.Options, "rprivate") {
		return false
	}
	for _, o := range m.Options {
		if o != "rbind" && o != "rprivate" && o != "rw" && o != "ro" {
			return false
		}
	}
	fi, err := os.Stat(m.Source)
	return err == nil && fi.Mode().IsRegular()
}

// place says that below dir there is a regular file at path, and makes an empty
// one where there is none. No part of the path may be a symbolic link or another
// mount; libcontainer knows what to do with those, and with kernels before 5.6,
// which cannot look up like this.
func place(dir int, path string) bool {
	path = strings.TrimPrefix(filepath.Clean("/"+path), "/")
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(dir, path, &how)
	if errors.Is(err, unix.ENOENT) {
		how.Flags, how.Mode = unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644
		fd, err = unix.Openat2(dir, path, &how)
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

func (f fileBind) set() error {
	m := specs.Mount{Type: "bind", Source: f.Source, Options: []string{"rbind", "rprivate"}}
	if err := mountAt(m, f.Target); err != nil {
		return err
	}
	var flags uintptr
	if f.ReadOnly {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount("", f.Target, "", flags|unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return &os.PathError{Op: "remount", Path: f.Target, Err: err}
	}
	return nil
}
