package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/quota"
)

// Directories are volumes that share the file system of the data directory, each limited by a project where that is
// possible.
type Directories struct {
	Dir     string
	project sync.Mutex // between the look whether a project is free and the taking
}

// Path is where a directory is.
func (b *Directories) Path(id string) string { return filepath.Join(b.Dir, id) }

// Make makes an empty directory that everybody may write to, as the root of a new file system of one owner is made
// ready by who mounts it.
func (b *Directories) Make(ctx context.Context, id string, _ int64) error {
	if err := b.Remove(ctx, id); err != nil {
		return err
	}
	if made, err := makeSubvolume(b.Dir, id); err != nil {
		return fmt.Errorf("make subvolume: %w", err)
	} else if !made {
		if err := os.Mkdir(b.Path(id), 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return atomicfile.SyncDir(b.Dir)
}

// Copy makes a directory with what another one has. Where that is a subvolume of btrfs, it is what it was at one
// moment.
func (b *Directories) Copy(ctx context.Context, id, from string) (shared bool, err error) {
	if err := b.Remove(ctx, id); err != nil {
		return false, err
	}
	if made, err := snapshotSubvolume(b.Dir, id, b.Path(from)); err != nil || made {
		if err != nil {
			err = fmt.Errorf("snapshot subvolume: %w", err)
		}
		return made, err
	}
	// What is left for others is what is known to be there: a copy must not fill the disk of everybody.
	room, err := filetree.RoomOf(b.Dir, 1)
	if err != nil {
		return false, err
	}
	if err := filetree.Copy(ctx, b.Path(id), b.Path(from), room); err != nil {
		return false, err
	}
	d, err := os.Open(b.Dir)
	if err != nil {
		return false, fmt.Errorf("sync: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return false, fmt.Errorf("sync: %w", err)
	}
	return false, nil
}

// AtOnce says whether a copy of a directory is what it was at one moment.
func (b *Directories) AtOnce(id string) bool { return isSubvolume(b.Path(id)) }

// Limit holds a directory to a number of bytes. It fails with [ErrNotLimited] where the file system does not do that.
func (b *Directories) Limit(id string, bytes int64) error {
	fd, err := unix.Open(b.Path(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", b.Path(id), err)
	}
	defer unix.Close(fd)
	if !quota.Enforced(fd) {
		return ErrNotLimited
	}
	b.project.Lock()
	defer b.project.Unlock()
	has, inherited, err := quota.Project(fd)
	if err != nil {
		return fmt.Errorf("project of %s: %w", b.Path(id), err)
	}
	may := quota.Candidates(id)
	if !inherited || !slices.Contains(may, has) {
		if has, err = quota.Free(fd, may); err != nil {
			return fmt.Errorf("find a free project: %w", err)
		}
	}
	// The limit comes first, so that nothing is ever in the project without one.
	if err := quota.Limit(fd, has, bytes); err != nil {
		return fmt.Errorf("limit project %d: %w", has, err)
	}
	if err := giveAll(fd, b.Path(id), has); err != nil {
		return fmt.Errorf("give directory to project %d: %w", has, err)
	}
	return nil
}

// giveAll puts a tree into a project: what was copied into it was made outside of it.
func giveAll(fd int, path string, project uint32) error {
	if err := quota.Give(fd, project); err != nil {
		return err
	}
	return filetree.Walk(context.Background(), fd, path, func(dir int, name string, st *unix.Stat_t) error {
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return nil // only these can be opened without anything happening
		}
		f, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(f)
		return quota.Give(f, project)
	})
}

// Remove removes a directory with all that is in it. What is mounted there stays, and is an error.
func (b *Directories) Remove(ctx context.Context, id string) error {
	if fd, err := unix.Open(b.Path(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		if has, inherited, err := quota.Project(fd); err == nil && inherited && slices.Contains(quota.Candidates(id), has) {
			_ = quota.Limit(fd, has, 0) // a limit of a project without files is in nobody's way
		}
		unix.Close(fd)
	}
	if _, err := os.Lstat(b.Path(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := removeSubvolume(b.Dir, id, b.Path(id)); err != nil {
		return fmt.Errorf("remove subvolume: %w", err)
	}
	if err := filetree.RemoveAll(ctx, b.Path(id)); err != nil {
		return err
	}
	return atomicfile.SyncDir(b.Dir) // its record goes next, and must not be gone before it
}

// Taken is how many bytes the file system counts for directories, where it counts.
func (b *Directories) Taken(_ context.Context, ids ...string) map[string]int64 {
	return each(ids, b.taken)
}

// each is what is known of some.
func each(ids []string, of func(id string) (int64, bool)) map[string]int64 {
	all := make(map[string]int64, len(ids))
	for _, id := range ids {
		if n, known := of(id); known {
			all[id] = n
		}
	}
	return all
}

func (b *Directories) taken(id string) (int64, bool) {
	fd, err := unix.Open(b.Path(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	has, inherited, err := quota.Project(fd)
	if err != nil || !inherited || !slices.Contains(quota.Candidates(id), has) {
		return 0, false
	}
	used, err := quota.Of(fd, has)
	return int64(used.Bytes), err == nil && used.Limit > 0
}

// Free is how many bytes there are for more.
func (b *Directories) Free(context.Context) (int64, error) { return roomOf(b.Dir) }

// Missing says why a directory is not there; nil when it is.
func (b *Directories) Missing(_ context.Context, id string, _ int64) error {
	st, err := os.Lstat(b.Path(id))
	if err == nil && !st.IsDir() {
		err = errors.New("it is no directory")
	}
	return err
}
