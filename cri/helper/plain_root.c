/*
 * The root of an ordinary container from within: it becomes that of the process, the host's is let go of, and what is
 * to be hidden or read-only is made so. Nothing of the host's but sockets is open from here on, so a path that leads
 * through a link of /proc's leads nowhere (CVE-2024-21626); and such links are not followed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry.h"
#include "null.h"
#include "plain.h"
#include "program.h"
#include "proto.h"
#include "terminal.h"
#include "wire.h"

/* pivot needs no directory for the old root: that is mounted over the new one for a moment, and then let go of. */
static int pivot(struct plain *s)
{
	int old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (old < 0 || fchdir(s->rootfd) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || fchdir(old) < 0 ||
	    mount("", ".", "", MS_SLAVE | MS_REC, "") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return program_bad(s->p, "enter root: %s", strerror(errno));
	close(old);
	close(s->rootfd);
	s->rootfd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return s->rootfd < 0 ? program_bad(s->p, "open root: %s", strerror(errno)) : 0;
}

/* clone_fd makes a mount of what is open. */
static int clone_fd(int fd, unsigned deep)
{
	return (int)syscall(SYS_open_tree, fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | deep);
}

/* set_terminal makes the terminal, which is the container's console, and gives the keeper the master of it. */
static int set_terminal(struct plain *s)
{
	int master = terminal_open(s->p, s->m), at, tree;
	if (master < 0)
		return -1;
	at = plain_open(s->rootfd, "dev/console", O_CREAT | O_RDONLY | O_NOFOLLOW,
			RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
	tree = clone_fd(s->p->slave, 0);
	if (at < 0 || tree < 0 || plain_attach(tree, at) < 0)
		return program_bad(s->p, "mount console: %s", strerror(errno));
	entry_terminal(s->console, master);
	close(s->console);
	close(master);
	close(at);
	close(tree);
	return 0;
}

/* plain_enter makes the root that of this process, and gives it its input and output. */
int plain_enter(struct plain *s)
{
	if (pivot(s) < 0)
		return -1;
	for (int i = 0; i < 3 && !s->p->tty; i++)
		if (s->missing & (1u << i) && null_take(i) < 0)
			return program_bad(s->p, "open /dev/null: %s", strerror(errno));
	/* The working directory is made, as it is by other runtimes. */
	int cwd = plain_place(s->rootfd, s->p->cwd, 1);
	if (cwd < 0)
		return program_bad(s->p, "make %s: %s", s->p->cwd, strerror(errno));
	close(cwd);
	if (s->p->tty && set_terminal(s) < 0)
		return -1;
	if (s->readonly && mount("", "/", "", MS_BIND | MS_REMOUNT | MS_RDONLY, "") < 0)
		return program_bad(s->p, "make root read-only: %s", strerror(errno));
	return 0;
}

/* look opens what is at a path of the container's, links followed. */
static int look(struct plain *s, struct span path)
{
	char *p = span_dup(path);
	int fd = p ? plain_open(s->rootfd, p, O_PATH, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS) : -1;
	free(p);
	return fd;
}

static int make_readonly(struct plain *s)
{
	struct mount_attr a = { .attr_set = MOUNT_ATTR_RDONLY };
	size_t at = 0;
	struct span v;
	while (tag_next(s->m, &at, TAG_READONLY, &v)) {
		int fd = look(s, v);
		if (fd < 0 && errno == ENOENT)
			continue;
		int tree = fd < 0 ? -1 : clone_fd(fd, AT_RECURSIVE);
		if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &a, sizeof a) < 0 ||
		    plain_attach(tree, fd) < 0)
			return program_bad(s->p, "make %.*s read-only: %s", (int)v.n, v.p, strerror(errno));
		close(fd);
		close(tree);
	}
	return 0;
}

/* empty makes a directory with nothing in it, and room for nothing. */
static int empty(void)
{
	int mnt = -1, fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	if (fs < 0)
		return -1;
	if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", "tmpfs", 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "nr_blocks", "1", 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "nr_inodes", "1", 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "ro", NULL, 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY);
	close(fs);
	return mnt;
}

/* hide covers files with the container's /dev/null, if that is what it seems (CVE-2025-31133), and directories. */
static int hide(struct plain *s)
{
	size_t at = 0;
	struct span v;
	struct stat st;
	int shared = -1;
	if (!tag_has(s->m, TAG_MASKED))
		return 0;
	int null = plain_open(s->rootfd, "dev/null", O_PATH | O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
	if (null < 0 || !is_null(null))
		return program_bad(s->p, "/dev/null of the container is not one");
	while (tag_next(s->m, &at, TAG_MASKED, &v)) {
		int fd = look(s, v), tree;
		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0 || fstat(fd, &st) < 0)
			return program_bad(s->p, "hide %.*s: %s", (int)v.n, v.p, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			tree = clone_fd(null, 0);
		else if (shared < 0)
			tree = shared = empty();
		else
			tree = clone_fd(shared, 0);
		if (tree < 0 || plain_attach(tree, fd) < 0)
			return program_bad(s->p, "hide %.*s: %s", (int)v.n, v.p, strerror(errno));
		close(fd);
		if (tree != shared)
			close(tree);
	}
	close(null);
	/* libcontainer reads it afterwards, and starts nothing that hides it. */
	if (faccessat(s->rootfd, "proc/sys/kernel/cap_last_cap", R_OK, 0) < 0)
		return program_bad(s->p, "/proc is hidden");
	return 0;
}

int plain_protect(struct plain *s)
{
	return make_readonly(s) < 0 || hide(s) < 0 ? -1 : 0;
}
