package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Mount says how to mount a snapshot: Type "overlay" with lowerdir, upperdir and workdir among the options, or "bind".
// The option "ro" makes it read-only.
type Mount struct {
	Type    string
	Source  string
	Options []string
	IDs     *IDs // nil: files belong to whom the snapshot says
}

// Mount mounts m at target, an existing directory.
func (m Mount) Mount(target string) error {
	var err error
	switch m.Type {
	case "overlay":
		err = m.overlay(target)
	case "bind":
		err = m.bind(target)
	default:
		err = fmt.Errorf("type %q: %w", m.Type, errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.Type, target, err)
	}
	return nil
}

// Unmount unmounts everything mounted at target, and does nothing when nothing is. It never follows a symbolic link,
// which a container may have put there. A mount that somebody still uses (a shell of the administrator, a process that
// is just ending) is detached: it is gone from the tree at once, and from the kernel when its last user is.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil // not a mount point (any more)
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		// A crash between a mount and its record can stack a second mount on the first: look again.
	}
}

// split parts the options that overlay knows from the flags of any mount.
func (m Mount) split() (lowers, rest []string, readonly bool) {
	for _, o := range m.Options {
		if v, ok := strings.CutPrefix(o, "lowerdir="); ok {
			lowers = strings.Split(v, ":")
		} else if o == "ro" {
			readonly = true
		} else if o != "rw" {
			rest = append(rest, o)
		}
	}
	return lowers, rest, readonly
}

// overlay uses the new mount API, which takes the layers one by one and is twice as fast, and mount(2) on kernels
// before 6.8, which do not know lowerdir+.
func (m Mount) overlay(target string) error {
	if m.IDs != nil {
		return m.overlayMapped(target)
	}
	if !takesLayers() {
		return m.named(m.overlayOld(target))
	}
	err := m.overlayNew(target)
	if err == nil {
		return nil
	}
	if oldErr := m.overlayOld(target); oldErr != nil {
		return fmt.Errorf("%w (with mount(2): %w)", err, oldErr)
	}
	return nil
}

// named says of which layer an error is: mount(2) has a number alone.
func (m Mount) named(err error) error {
	if err == nil {
		return nil
	}
	lowers, _, _ := m.split()
	for _, l := range lowers {
		if _, statErr := os.Stat(l); statErr != nil {
			return fmt.Errorf("%w: %w", err, statErr)
		}
	}
	return err
}

// takesLayers says whether overlay takes layers one by one here. A kernel that does not is never asked: it writes a
// line to its log for each mount that it refuses.
var takesLayers = sync.OnceValue(func() bool {
	var u unix.Utsname
	return unix.Uname(&u) != nil || hasLayers(unix.ByteSliceToString(u.Release[:]))
})

// hasLayers says whether a release of Linux, such as 6.1.0-50-amd64, is one from 6.8, where lowerdir+ came.
func hasLayers(release string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return true // it says when it does not
	}
	return major > 6 || major == 6 && minor >= 8
}

// overlayNew takes the layers in place of the option, where there are any.
func (m Mount) overlayNew(target string, layers ...*os.File) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := m.configure(fs, layers); err != nil {
		// The kernel says what it dislikes on the file descriptor itself, one line a read.
		var why [512]byte
		if n, _ := unix.Read(fs, why[:]); n > 0 {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(why[:n])))
		}
		return err
	}
	attr := 0
	if _, _, ro := m.split(); ro {
		attr = unix.MOUNT_ATTR_RDONLY
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mnt)
	return attach(mnt, target)
}

func (m Mount) configure(fs int, layers []*os.File) error {
	lowers, rest, _ := m.split()
	if len(layers) > 0 {
		lowers = nil
	}
	if err := unix.FsconfigSetString(fs, "source", m.Source); err != nil {
		return fmt.Errorf("set source: %w", err)
	}
	for _, l := range lowers {
		if err := unix.FsconfigSetString(fs, "lowerdir+", l); err != nil {
			return fmt.Errorf("set layer %s: %w", l, err)
		}
	}
	for _, l := range layers {
		if err := unix.FsconfigSetFd(fs, "lowerdir+", int(l.Fd())); err != nil {
			return fmt.Errorf("set layer %s: %w", l.Name(), err)
		}
	}
	for _, o := range rest {
		var err error
		if k, v, ok := strings.Cut(o, "="); ok {
			err = unix.FsconfigSetString(fs, k, v)
		} else {
			err = unix.FsconfigSetFlag(fs, k)
		}
		if err != nil {
			return fmt.Errorf("set option %s: %w", o, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create filesystem: %w", err)
	}
	return nil
}

func attach(mnt int, target string) error {
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// overlayOld hands all options to mount(2) in one string, of which the kernel takes a page at most. Where the paths of
// many layers do not fit, they are given relative to the directory all of them are in.
func (m Mount) overlayOld(target string) error {
	lowers, rest, ro := m.split()
	var flags uintptr
	if ro {
		flags = unix.MS_RDONLY
	}
	data := strings.Join(append([]string{"lowerdir=" + strings.Join(lowers, ":")}, rest...), ",")
	if len(data) < os.Getpagesize() {
		return unix.Mount(m.Source, target, "overlay", flags, data)
	}
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	base := filepath.Dir(filepath.Dir(lowers[0])) // layers are <base>/<id>/fs
	for i, l := range lowers {
		lowers[i] = strings.TrimPrefix(l, base+"/")
	}
	data = strings.Join(append([]string{"lowerdir=" + strings.Join(lowers, ":")}, rest...), ",")
	if len(data) >= os.Getpagesize() {
		return fmt.Errorf("%d layers: options are longer than a page: %w", len(lowers), unix.E2BIG)
	}
	return inDir(base, func() error { return unix.Mount(m.Source, target, "overlay", flags, data) })
}

// inDir calls f on a thread that has a working directory of its own.
func inDir(dir string, f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare working directory: %w", err)
		}
		if err := unix.Chdir(dir); err != nil {
			return fmt.Errorf("change to %s: %w", dir, err)
		}
		return f()
	})
}

// onThread calls f on a thread that ends afterwards, because what f does to it cannot be taken back. That is never the
// first thread of the process: it cannot end, and /proc/self would show its mounts and its working directory as those
// of the process.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err := onThread(f) // on another one, since this one is taken
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f() // not unlocked: the runtime ends the thread with the goroutine
	}()
	return <-done
}

// inOwnMounts calls f in a mount namespace that ends with the call, and with this process: nobody else sees what f
// mounts.
func inOwnMounts(f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return f()
	})
}

// detached mounts m where nobody else sees it, and returns the mount, which goes when it is closed. The directory at is
// used for a moment, in a mount namespace of one thread: not every kernel that has OverlayFS can mount it to a file
// descriptor.
func (m Mount) detached(at string) (*os.File, error) {
	var fd int
	err := inOwnMounts(func() error {
		if err := m.Mount(at); err != nil {
			return err
		}
		var err error
		if fd, err = unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return fmt.Errorf("open %s: %w", at, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), at), nil
}

// tree is a mount of the source that is attached nowhere yet.
func (m Mount) tree() (int, error) {
	if m.IDs != nil {
		f, err := m.IDs.clone(m.Source)
		if err != nil {
			return -1, err
		}
		defer f.Close()
		return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	mnt, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", m.Source, err)
	}
	return mnt, nil
}

func (m Mount) bind(target string) error {
	mnt, err := m.tree()
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	if _, _, ro := m.split(); ro {
		if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make read-only: %w", err)
		}
	}
	return attach(mnt, target)
}
