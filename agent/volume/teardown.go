package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/internal/filetree"
)

// Teardown unmounts and removes everything of a pod. The pod's containers have ended by then.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error {
	return m.remove(ctx, uid, removePod)
}

// Release is Teardown of the volumes alone: the pod's directory stays, with the records in it and what its containers have said last. So
// it is at no time without the record that the pod is over.
func (m *Manager) Release(ctx context.Context, uid types.UID) error {
	return m.remove(ctx, uid, func(ctx context.Context, dir string) error { return empty(ctx, dir, volumeData) })
}

func (m *Manager) remove(ctx context.Context, uid types.UID, files func(ctx context.Context, dir string) error) error {
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
	if err := files(ctx, dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	return nil
}

// mayGo says what may be removed of a directory's content. Data in a place that nobody knows of is not ours to delete.
type mayGo func(depth int, st *unix.Stat_t) error

// mountpoints lets go nothing but empty directories and empty files: what things were mounted upon.
func mountpoints(_ int, st *unix.Stat_t) error {
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR, kind == unix.S_IFREG && st.Size == 0:
		return nil
	}
	return errors.New("it holds data that is not known to be the pod's")
}

// ownFiles lets go the files in the pod's own directory, such as its hosts, and mount points below.
func ownFiles(depth int, st *unix.Stat_t) error {
	if depth == 0 {
		return nil
	}
	return mountpoints(depth, st)
}

// removable says what of a pod's directory may be removed; nil is everything: it was the pod's, and goes with it.
type removable struct {
	path string
	may  mayGo
}

var (
	volumeData = []removable{{volumesDir + "/" + emptyDirPlugin, nil}, {volumesDir + "/" + configMapPlugin, nil}}
	podFiles   = []removable{{containersDir, nil}, {"", ownFiles}}
)

func removePod(ctx context.Context, dir string) error {
	if err := empty(ctx, dir, slices.Concat(volumeData, podFiles)); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

func empty(ctx context.Context, dir string, contents []removable) error {
	root, err := openDir(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	var errs []error
	for _, c := range contents {
		fd, err := openSame(root, c.path)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("open %s: %w", filepath.Join(dir, c.path), err))
			continue
		}
		errs = append(errs, filetree.Empty(ctx, fd, filepath.Join(dir, c.path), filetree.Removal{May: c.may}))
		unix.Close(fd)
		if ctx.Err() != nil {
			break
		}
	}
	// The first says why; what follows from it is that directories above are not empty.
	for _, err := range errs {
		if err != nil {
			return err
		}
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
