package directory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/source/manifest"
)

// identity tells one state of a file from the next.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
	mode, uid    uint32
}

func statID(st *unix.Stat_t) identity {
	return identity{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim, mode: st.Mode, uid: st.Uid}
}

// exposed says why a file in that state may not hold Secrets.
func (id identity) exposed() error {
	const rule = "Secrets are taken only from files of mode 0600 that are root's, or from the service's credentials " +
		"(annotation " + manifest.AnnotationCredentials + ")"
	switch {
	case id.mode&0o077 != 0:
		return fmt.Errorf("the file has mode %04o, so others can read or change it: %s", id.mode&0o7777, rule)
	case id.uid != 0 && int(id.uid) != os.Geteuid():
		return fmt.Errorf("the file belongs to user %d: %s", id.uid, rule)
	}
	return nil
}

// errBusy says that a file is open for writing: its writer's close will be told.
var errBusy = errors.New("open for writing")

// readManifest reads a regular file that nobody writes to. Anything else is refused unopened or unread: a FIFO would
// block, and a device may act.
func readManifest(path string) ([]byte, identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if os.IsNotExist(err) {
			return nil, identity{}, errors.New("symlink leads nowhere")
		}
		return nil, identity{}, fmt.Errorf("cannot be read: %w", err)
	}
	id := statID(&st)
	if err := checkKind(&st); err != nil {
		return nil, id, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	id = statID(&st)
	if err := checkKind(&st); err != nil {
		return nil, id, err
	}
	// They call themselves regular, but reading one (/proc/kmsg) may never come to an end.
	if kernels(f) {
		return nil, id, errors.New("is a file of the kernel's own, such as those in /proc")
	}
	if beingWritten(f) {
		return nil, id, errBusy
	}
	data, err := io.ReadAll(io.LimitReader(f, manifest.MaxSize+1))
	if err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > manifest.MaxSize {
		return nil, id, fmt.Errorf("file has more than %d bytes", manifest.MaxSize)
	}
	// It may have been opened since.
	if beingWritten(f) {
		return nil, id, errBusy
	}
	return data, id, nil
}

func checkKind(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Size > manifest.MaxSize {
			return fmt.Errorf("file has %d bytes, and at most %d are allowed", st.Size, manifest.MaxSize)
		}
		return nil
	case unix.S_IFDIR:
		return errors.New("is a directory: manifests in it are not read")
	}
	return errors.New("is no regular file")
}

// kernels says whether a file is in a file system that shows what the kernel knows, and not what is on a disk.
func kernels(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil &&
		slices.Contains([]int64{
			unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.TRACEFS_MAGIC, unix.DEBUGFS_MAGIC,
			unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		}, st.Type)
}

// beingWritten asks for a read lease, which the kernel refuses while any process has the file open for writing. Where
// leases do not exist, the answer is no, and half a file may be read until its writer closes it.
func beingWritten(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
