// Package backend is what volumes and snapshots are stored in: directories, images with loop devices, logical volumes.
// It knows IDs and sizes, and nothing of what is asked of the driver. Every act can be repeated, and does away with
// what a crash has left of it.
package backend

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrNotLimited says that a file system does not limit what a directory may take.
var ErrNotLimited = errors.New("the file system of the data directory has no project quotas (ext4 or xfs that is mounted with prjquota)")

// roomOf is what the file system of a directory has free for who is not root.
func roomOf(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
