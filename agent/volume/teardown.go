package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"go.opentelemetry.io/otel/trace"
)

// Teardown unmounts and removes everything of a pod. The pod's containers have ended by then.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error {
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/volume").Start(ctx, "remove volumes")
	defer span.End()
	dir, err := m.podDir(uid)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// It returns without an error only after it has seen that no mount is left.
	if err := unmountUnder(dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	if err := m.releaseISCSI(ctx, dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	m.unlimit(dir)
	if err := removePod(ctx, dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	return nil
}

// What may be removed of a directory's content.
type policy int

const (
	// nothing but empty directories and empty files: what things were mounted upon.
	mountpoints policy = iota
	// ownFiles are the files in the pod's own directory, such as its hosts.
	ownFiles
	// everything: it was the pod's, and goes with it.
	everything
)

// contents says what of a pod's directory may be removed. All else must be empty by itself: data in a place that nobody
// knows of is not ours to delete.
var contents = []struct {
	path   string
	policy policy
}{
	{volumesDir + "/" + emptyDirPlugin, everything},
	{volumesDir + "/" + configMapPlugin, everything},
	{containersDir, everything}, // after the emptyDirs, whose deepest parts are moved there
	{"", ownFiles},
}

func removePod(ctx context.Context, dir string) error {
	root, err := openDir(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	r := remover{root: root, dir: dir, ended: ctx.Err}
	for _, c := range contents {
		fd, err := openSame(root, c.path)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", filepath.Join(dir, c.path), err)
		}
		if err := r.empty(fd, c.path, c.policy, 0); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// openSame opens a directory below dir on the same mount, following no link.
func openSame(dir int, name string) (int, error) {
	if name == "" {
		name = "."
	}
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// maxDepth bounds the descriptors held at a time. A pod can nest directories without end.
const maxDepth = 100

type remover struct {
	root  int
	dir   string
	moved int
	ended func() error // why it is to give up; whoever on the machine goes on writing would keep it at work for ever
}

// empty removes what may be removed of the directory fd, which it closes; at is its path, for messages.
func (r *remover) empty(fd int, at string, p policy, depth int) error {
	d := os.NewFile(uintptr(fd), at)
	defer d.Close()
	for {
		if err := r.ended(); err != nil {
			return fmt.Errorf("remove %s: %w", filepath.Join(r.dir, at), err)
		}
		// A directory's entries are read again from the start as long as removing leaves any: what is read while entries go
		// may be incomplete.
		names, err := d.Readdirnames(1000)
		if len(names) == 0 && (err == nil || errors.Is(err, io.EOF)) {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("list %s: %w", filepath.Join(r.dir, at), err)
		}
		for _, name := range names {
			if err := r.remove(int(d.Fd()), name, at, p, depth); err != nil {
				return err
			}
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("list %s: %w", filepath.Join(r.dir, at), err)
		}
	}
}

// remove removes one entry of the directory fd. What kind it is the kernel says, when asked to remove it.
func (r *remover) remove(fd int, name, at string, p policy, depth int) error {
	path := filepath.Join(r.dir, at, name)
	if p == mountpoints {
		if err := isMountpoint(fd, name); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if depth >= maxDepth {
		return r.lift(fd, name, path, p)
	}
	child, err := openSame(fd, name)
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if p == ownFiles {
		p = mountpoints
	}
	if err := r.empty(child, filepath.Join(at, name), p, depth+1); err != nil {
		return err
	}
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// isMountpoint refuses what nothing was mounted upon.
func isMountpoint(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR, kind == unix.S_IFREG && st.Size == 0:
		return nil
	}
	return errors.New("it holds data that is not known to be the pod's")
}

// lift moves a directory that is too deep to where it will be emptied later.
func (r *remover) lift(fd int, name, path string, p policy) error {
	if p != everything {
		return fmt.Errorf("remove %s: nested too deep", path)
	}
	if err := unix.Mkdirat(r.root, containersDir, 0o750); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	later, err := openSame(r.root, containersDir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	defer unix.Close(later)
	for {
		r.moved++
		// Those of an earlier try may still be there.
		err := unix.Renameat2(fd, name, later, stagingPrefix+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
}
