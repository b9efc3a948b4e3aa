package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/quota"
)

// The limit of an emptyDir is one of the kernel's where the file system limits projects: who is over it cannot write.
// Which projects a volume may have follows from its pod's UID and its name.

// limitDir gives an empty directory, which becomes the pod's volume, a project of its own with the limit (0: none),
// where the file system knows such. It leaves one alone that is in a project already: somebody limits all of what the
// agent has, or an earlier try was cut off.
func (k *emptyDirs) limitDir(dir string, uid types.UID, volume string, bytes int64) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	has, _, err := quota.Project(fd)
	if err != nil || has != 0 || !quota.Enforced(fd) {
		return nil // there are no projects here, and what is used is counted
	}
	k.project.Lock()
	defer k.project.Unlock()
	project, err := quota.Free(fd, candidates(uid, volume))
	if err != nil {
		return fmt.Errorf("find a free project: %w", err)
	}
	// The limit comes first, so that nothing is ever in the project without one.
	if err := quota.Limit(fd, project, bytes); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	if err := quota.Give(fd, project); err != nil {
		return fmt.Errorf("give directory to project %d: %w", project, err)
	}
	return nil
}

func openDir(path string) (int, error) {
	return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// candidates are the projects that a volume may get.
func candidates(uid types.UID, volume string) []uint32 {
	return quota.Candidates(string(uid) + "/" + volume)
}

// projectOf is the project that limitDir has given a volume; false when it has none.
func projectOf(fd int, uid types.UID, volume string) (uint32, bool) {
	id, inherited, err := quota.Project(fd)
	return id, err == nil && inherited && slices.Contains(candidates(uid, volume), id)
}

// Release takes away the limits of the projects of a pod's volumes, which are about to be removed. In this order a
// crash leaves none behind.
func (k *emptyDirs) Release(_ context.Context, dir string) error {
	parent := kind.PluginDir(dir, emptyDirPlugin)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil // there are none
	}
	uid := types.UID(filepath.Base(dir))
	for _, e := range entries {
		fd, err := openDir(filepath.Join(parent, e.Name()))
		if err != nil {
			continue
		}
		if id, ok := projectOf(fd, uid, strings.TrimPrefix(e.Name(), stagingPrefix)); ok {
			if err := quota.Limit(fd, id, 0); err != nil {
				k.log.Debug("the limit of a project that goes stays", "uid", string(uid), "project", id, "error", err)
			}
		}
		unix.Close(fd)
	}
	return nil
}

// Use is what the file system counts for a volume.
type Use struct{ Bytes, Inodes int64 }

// Charged is what the file system counts for an emptyDir; false when it does not count it.
func Charged(root string, uid types.UID, volume string) (Use, bool) {
	fd, err := openDir(EmptyDir(root, uid, volume))
	if err != nil {
		return Use{}, false
	}
	defer unix.Close(fd)
	id, ok := projectOf(fd, uid, volume)
	if !ok {
		return Use{}, false
	}
	used, err := quota.Of(fd, id)
	return Use{int64(used.Bytes), int64(used.Inodes)}, err == nil
}
