/*
 * /dev/null for the processes of containers. The host's must not be among their
 * files: who has a file open can change the mode of it, as its owner.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "null.h"

#define NULL_DEV makedev(1, 3)

static int stat_is_null(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == NULL_DEV;
}

int is_null(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && stat_is_null(&st);
}

/*
 * null_fresh makes a device in a file system that is mounted nowhere. It needs
 * CAP_SYS_ADMIN and CAP_MKNOD of the host.
 */
int null_fresh(void)
{
	int fd = -1, fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	if (fs < 0)
		return -1;
	int mnt = -1;
	if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "nr_inodes", "2", 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, 0, 0, 0) == 0)
		mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	if (mnt >= 0 && syscall(SYS_mknodat, mnt, "null", S_IFCHR | 0666, (unsigned)NULL_DEV) == 0 &&
	    syscall(SYS_fchmodat, mnt, "null", 0666) == 0) /* whatever the umask is */
		fd = (int)syscall(SYS_openat, mnt, "null", O_RDWR | O_CLOEXEC);
	int err = errno;
	if (mnt >= 0)
		syscall(SYS_close, mnt);
	syscall(SYS_close, fs);
	errno = err;
	return fd;
}

/* null_open opens the container's own; -1 where it has none, or something else in the place of it. */
static int null_open(void)
{
	struct stat st;
	/* Looked at first: opening another device might do something. */
	if (fstatat(AT_FDCWD, "/dev/null", &st, AT_SYMLINK_NOFOLLOW) < 0 || !stat_is_null(&st))
		return -1;
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd >= 0 && !is_null(fd)) {
		syscall(SYS_close, fd);
		return -1;
	}
	return fd;
}

/* null_end is one end of a pipe that nobody has the other of. */
int null_end(int write)
{
	int p[2];
	if (syscall(SYS_pipe2, p, O_CLOEXEC) < 0)
		return -1;
	syscall(SYS_close, p[!write]);
	return p[write];
}

/*
 * null_take makes a descriptor of 0 to 2 the container's /dev/null. Where there is
 * none it is a new one, and in a user namespace, where none can be made, nothing
 * can be read, or written.
 */
int null_take(int as)
{
	int fd = null_open();
	if (fd < 0)
		fd = null_fresh();
	if (fd < 0)
		fd = null_end(as != 0);
	if (fd < 0)
		return -1;
	if (fd == as) /* it was free */
		return (int)syscall(SYS_fcntl, fd, F_SETFD, 0);
	int r = (int)syscall(SYS_dup3, fd, as, 0);
	syscall(SYS_close, fd);
	return r < 0 ? -1 : 0;
}
