package layer

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

const (
	whPrefix  = ".wh."
	whMeta    = ".wh..wh."
	whOpaque  = ".wh..wh..opq"
	ovlOpaque = "trusted.overlay.opaque"
)

// whiteout does a deletion that an archive asks for. It concerns the layers below only: what this archive brings itself
// stays, in whatever order the two come.
func (a *applier) whiteout(dir handle, parent, base string) error {
	a.remember(parent)
	overlay := a.opt.Whiteouts == snapshot.WhiteoutsOverlay
	if base == whOpaque {
		if overlay {
			a.opaqueRoot = a.opaqueRoot || parent == ""
			return opaque(a.tree.openat(parent, unix.O_RDONLY|unix.O_DIRECTORY))
		}
		return a.emptyOld(parent)
	}
	if strings.HasPrefix(base, whMeta) {
		return nil // bookkeeping of aufs
	}
	base = strings.TrimPrefix(base, whPrefix)
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("deletion of %q: %w", base, errEscapes)
	}
	name := base
	if parent != "" {
		name = parent + "/" + base
	}
	if !overlay {
		if _, ok := a.made[name]; !ok {
			return a.tree.remove(dir.fd, base)
		}
		if st, err := stat(dir.fd, base); err != nil || !isDir(st) {
			return err
		}
		return a.emptyOld(name)
	}
	a.hidden = append(a.hidden, name)
	return a.tree.cover(dir.fd, base)
}

// opaque hides what lower layers have in a directory, and closes it.
func opaque(fd int, err error) error {
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, ovlOpaque, []byte("y"), 0); err != nil {
		return fmt.Errorf("set %s: %w", ovlOpaque, err)
	}
	return nil
}

// remember notes that this archive brings name, and so the directories it is in.
func (a *applier) remember(name string) {
	for a.made != nil && name != "" {
		if _, ok := a.made[name]; ok {
			return
		}
		a.made[name] = struct{}{}
		name, _ = split(name)
	}
}

// emptyOld deletes what lower layers brought into the directory name. Directories that this archive has too are looked
// into one after the other, so that one descriptor is enough.
func (a *applier) emptyOld(name string) error {
	for names := []string{name}; len(names) > 0; {
		if err := a.ctx.Err(); err != nil {
			return context.Cause(a.ctx)
		}
		name, names = names[len(names)-1], names[:len(names)-1]
		also, err := a.emptyOne(name)
		if err != nil {
			return err
		}
		names = append(names, also...)
	}
	return nil
}

// emptyOne does one directory and returns the ones in it that this archive has too.
func (a *applier) emptyOne(name string) (also []string, err error) {
	fd, err := a.tree.openat(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, err := list(fd, name)
	if err != nil {
		return nil, err
	}
	for _, base := range names {
		n := base
		if name != "" {
			n = name + "/" + base
		}
		if _, ok := a.made[n]; !ok {
			if err := a.tree.remove(fd, base); err != nil {
				return nil, err
			}
		} else if st, err := stat(fd, base); err == nil && isDir(st) {
			also = append(also, n)
		}
	}
	return also, nil
}
