// Package spread has directories lie apart on the disk where it costs much that they lie together.
package spread

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// topDir is FS_TOPDIR_FL of linux/fs.h: the directories in it have nothing to do with each other. None of them inherits
// it.
const topDir = 0x20000

// Apart has ext4 without a journal put each directory that is made in dir where few are, with what is made in that.
// Such a file system does not use the inode of a deleted file again for minutes, and looks at all of these in a group
// of blocks for each new file there: where directories come and go together, that takes longer than all else about
// them. With a journal ext4 does not look, and one group has less to be written. It is a wish: whoever does not fulfil
// it works all the same.
func Apart(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !looks(fd) {
		return
	}
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|topDir))
	}
}

// looks says whether an open file is on ext4 without a journal.
func looks(fd int) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.EXT4_SUPER_MAGIC || unix.Fstat(fd, &st) != nil {
		return false
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return false
	}
	task, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "journal_task"))
	return err == nil && strings.TrimSpace(string(task)) == "<none>"
}
