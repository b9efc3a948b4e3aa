// Package ownership gives trees of files to groups, as the kubelet does for a pod's fsGroup.
package ownership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/openat"
)

// What the group may do with the files. The setgid bit hands the group on to what is made later.
const (
	groupFile = 0o660
	groupDir  = 0o770 | unix.S_ISGID
)

// Give gives the directory at path and everything in it to a group. Unless it is to be done always, nothing is done
// when the directory says that it has been done. It comes last, so that a walk that was cut off starts over. looked, if
// it is not nil, is called by several goroutines for each entry before it is looked at.
func Give(ctx context.Context, path string, gid uint32, always bool, looked func()) error {
	root, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(root)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if !always && st.Gid == gid && st.Mode&groupDir == groupDir {
		return nil
	}
	if looked == nil {
		looked = func() {}
	}
	g := grouper{gid: gid, dev: st.Dev, looked: looked}
	g.group.SetLimit(2 * runtime.NumCPU())
	dup, err := mount.OpenSame(root, "")
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	err = g.walk(ctx, dup, path, 0)
	if err = errors.Join(err, g.group.Wait()); err != nil {
		return fmt.Errorf("give volume to group %d: %w", gid, err)
	}
	return g.give(root, path, &st)
}

// grouper walks directories side by side, since most of a walk is waiting for the disk. It follows no link and stays on
// one file system: what is mounted below is not the volume's.
type grouper struct {
	gid   uint32
	dev   uint64
	group errgroup.Group

	looked func()
}

// deepest bounds the descriptors that one hand holds. Who writes to a volume can nest directories without end.
const deepest = 30

// walk gives away everything in the directory fd, which it closes.
func (g *grouper) walk(ctx context.Context, fd int, path string, depth int) error {
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	if depth > deepest {
		return filetree.Walk(ctx, fd, path, func(dir int, name string, _ *unix.Stat_t) error {
			child, st, err := g.open(dir, name, path+"/.../"+name)
			if err != nil || child < 0 {
				return err
			}
			defer unix.Close(child)
			return g.give(child, path+"/.../"+name, &st)
		})
	}
	for {
		names, err := d.Readdirnames(1000)
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := g.entry(ctx, int(d.Fd()), name, filepath.Join(path, name), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || err == nil && len(names) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (g *grouper) entry(ctx context.Context, dir int, name, path string, depth int) error {
	fd, st, err := g.open(dir, name, path)
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		child, err := mount.OpenSame(fd, "")
		if err != nil {
			return fmt.Errorf("open %s: %w", filetree.Shown(path), err)
		}
		// Where all hands are busy the walk goes on with this one, so that it never waits for itself.
		if !g.group.TryGo(func() error { return g.walk(ctx, child, path, 0) }) {
			if err := g.walk(ctx, child, path, depth+1); err != nil {
				return err
			}
		}
	}
	return g.give(fd, path, &st)
}

// open opens an entry by its path only; -1 when it has gone meanwhile, is a link, or something else is mounted there.
func (g *grouper) open(dir int, name, path string) (fd int, st unix.Stat_t, err error) {
	g.looked()
	fd, err = openat.Open(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return -1, st, nil
	}
	if err != nil {
		return -1, st, fmt.Errorf("open %s: %w", filetree.Shown(path), err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, fmt.Errorf("stat %s: %w", filetree.Shown(path), err)
	}
	if st.Dev != g.dev || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return -1, st, nil
	}
	return fd, st, nil
}

// give changes the group, then the mode: the former clears the setgid bit.
func (g *grouper) give(fd int, path string, st *unix.Stat_t) error {
	// A descriptor that was opened by path only is good for neither fchown nor fchmod, but for a way back to the file.
	self := fmt.Sprintf("/proc/self/fd/%d", fd)
	if st.Gid != g.gid {
		if err := unix.Fchownat(fd, "", -1, int(g.gid), unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("chown %s: %w", filetree.Shown(path), err)
		}
	}
	mode := st.Mode&0o7777 | groupFile
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		mode |= groupDir
	}
	if mode == st.Mode&0o7777 && st.Gid == g.gid {
		return nil
	}
	if err := unix.Chmod(self, mode); err != nil {
		return fmt.Errorf("chmod %s: %w", filetree.Shown(path), err)
	}
	return nil
}
