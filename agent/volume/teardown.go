package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/mount"
)

// Teardown unmounts and removes everything of a pod. The pod's containers have ended by then.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error {
	return m.remove(ctx, uid, m.removePod)
}

// Release is Teardown of the volumes alone: the pod's directory stays, with the records in it and what its containers
// have said last. So it is at no time without the record that the pod is over.
func (m *Manager) Release(ctx context.Context, uid types.UID) error {
	return m.remove(ctx, uid, func(ctx context.Context, dir string) error { return empty(ctx, dir, m.volumeData()) })
}

func (m *Manager) remove(ctx context.Context, uid types.UID, files func(ctx context.Context, dir string) error) error {
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/volume").Start(ctx, "remove volumes")
	defer span.End()
	dir, err := m.root.Dir(uid)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := m.unpublish(ctx, dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	// It returns without an error only after it has seen that no mount is left.
	if err := mount.UnmountUnder(dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	for _, k := range m.kinds {
		if k, ok := k.(releases); ok {
			if err := k.Release(ctx, dir); err != nil {
				return fmt.Errorf("remove volumes: %w", err)
			}
		}
	}
	if err := files(ctx, dir); err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	m.log.Debug("volumes are removed", "uid", string(uid))
	return nil
}

// unpublish has those unmount their volumes who have mounted them. A subPath is a mount of the volume too, which would
// keep it busy.
func (m *Manager) unpublish(ctx context.Context, dir string) error {
	subPaths := filepath.Join(dir, subPathsDir)
	if _, err := os.Lstat(subPaths); err == nil {
		if err := mount.UnmountUnder(subPaths); err != nil {
			return err
		}
	}
	for _, k := range m.kinds {
		k, ok := k.(unpublishes)
		if !ok {
			continue
		}
		if err := k.Unpublish(ctx, dir); err != nil {
			return errors.Join(err, m.detachDead(dir))
		}
	}
	return nil
}

// detachDead unmounts everything in a pod's directory if something there does not answer. A call that hangs there, of
// this agent too, keeps a mount busy, so that nobody who goes about it gently can unmount it. The next try finds it
// gone.
func (m *Manager) detachDead(dir string) error {
	mounts, err := mount.Under(dir)
	if err != nil {
		return err
	}
	for _, path := range mounts {
		ctx, cancel := context.WithTimeout(context.Background(), deadAfter)
		err := m.calls.Do(ctx, path, 0, func() error {
			var st unix.Statfs_t
			_ = unix.Statfs(path, &st) // it answers, whatever it says
			return nil
		})
		cancel()
		if err != nil {
			return errors.Join(err, mount.UnmountUnder(dir))
		}
	}
	return nil
}

// deadAfter is how long a mount has to answer that could not be unmounted.
const deadAfter = 10 * time.Second

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

// part is a part of a pod's directory, and says what of it may be removed; nil is everything: it was the pod's, and
// goes with it.
type part struct {
	path string
	may  mayGo
}

// volumeData are the parts of a pod's directory that volumes have, in the order in which they go.
func (m *Manager) volumeData() []part {
	var out []part
	for _, k := range m.kinds {
		if t := k.Traits(); t.PodsOwn {
			out = append(out, part{kind.PluginDir("", t.Plugin), nil})
		}
	}
	return out
}

func (m *Manager) removePod(ctx context.Context, dir string) error {
	if err := empty(ctx, dir, append(m.volumeData(), part{containersDir, nil}, part{claimsDir, nil}, part{"", ownFiles})); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

func empty(ctx context.Context, dir string, contents []part) error {
	root, err := openDir(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	var errs []error
	for _, c := range contents {
		if err := ctx.Err(); err != nil { // between two of them nobody else says that there is more
			errs = append(errs, err)
			break
		}
		fd, err := mount.OpenSame(root, c.path)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("open %s: %w", filepath.Join(dir, c.path), err))
			continue
		}
		errs = append(errs, filetree.Empty(ctx, fd, filepath.Join(dir, c.path), filetree.Removal{May: c.may}))
		unix.Close(fd)
	}
	// The first says why; what follows from it is that directories above are not empty.
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
