/*
 * The mounts of an ordinary container. Each is made where nobody sees it, by the kernel's calls for that, and then
 * attached to a place that is open already. A place below the root is looked up by the kernel in one go with that root
 * as /, so no link of the image's, and nobody who swaps a directory for a link meanwhile, leads out of it
 * (CVE-2021-30465, CVE-2024-45310). What is unusual fails here, and libcontainer sees to it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "plain.h"
#include "program.h"
#include "proto.h"
#include "sys.h"
#include "wire.h"

#define PROC_MAGIC 0x9fa0
#define SYSFS_MAGIC 0x62656572
#define CGROUP_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270

#define OWN (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
#define WITHIN (RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)

/* plain_open looks a path up. The kernel gives up when something is renamed meanwhile, and is asked again. */
int plain_open(int root, const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .mode = flags & O_CREAT ? 0644 : 0, .resolve = resolve };
	int fd = -1;
	for (int i = 0; fd < 0 && i < 128; i++) {
		fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
		if (fd < 0 && errno != EAGAIN && errno != EINTR)
			break;
	}
	return fd;
}

/* step opens what is at a name of a directory, and makes it when there is nothing. It is nowhere else. */
static int step(int at, const char *name, int dir)
{
	if (!dir)
		return plain_open(at, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW, OWN | RESOLVE_NO_XDEV);
	if (mkdirat(at, name, 0755) < 0)
		return -1;
	return plain_open(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, OWN | RESOLVE_NO_XDEV);
}

/*
 * plain_place opens the place of a mount below a root, links in it followed, and makes what there is not of it, as
 * libcontainer would.
 */
int plain_place(int root, const char *path, int dir)
{
	char part[PATH_MAX];
	int fd = plain_open(root, path, O_PATH, WITHIN);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	fd = fcntl(root, F_DUPFD_CLOEXEC, 3);
	for (const char *end = path; fd >= 0 && *end;) {
		const char *name = end + strspn(end, "/");
		size_t n = strcspn(name, "/"), upto = (size_t)(name - path) + n;
		if (n == 0)
			break;
		if (upto >= sizeof part) {
			close(fd);
			errno = ENAMETOOLONG;
			return -1;
		}
		end = name + n;
		memcpy(part, path, upto);
		part[upto] = 0;
		int next = plain_open(root, part, O_PATH, WITHIN);
		if (next < 0 && errno == ENOENT)
			next = step(fd, part + (name - path), dir || *end);
		int e = errno;
		close(fd);
		errno = e;
		fd = next;
	}
	return fd;
}

int plain_attach(int tree, int at)
{
	return (int)syscall(SYS_move_mount, tree, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

static int set_attr(int tree, unsigned flags, uint64_t set, uint64_t clear, uint64_t spread)
{
	struct mount_attr a = { .attr_set = set, .attr_clr = clear, .propagation = spread };
	return (int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | flags, &a, sizeof a);
}

/* forbidden says whether nothing may be mounted at a place: over the root, or what the kernel shows of itself. */
static int forbidden(struct plain *s, int at)
{
	struct stat root, st;
	struct statfs fs;
	if (fstat(s->rootfd, &root) < 0 || fstat(at, &st) < 0 || fstatfs(at, &fs) < 0)
		return 1;
	return (root.st_dev == st.st_dev && root.st_ino == st.st_ino) || fs.f_type == PROC_MAGIC ||
	       fs.f_type == SYSFS_MAGIC || fs.f_type == CGROUP_MAGIC || fs.f_type == CGROUP2_MAGIC;
}

/* copy clones a mount of the host, or one with all below it. */
static int copy(const char *source, const struct place_mount *m)
{
	unsigned deep = m->flags & MOUNT_F_REC ? AT_RECURSIVE : 0;
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | deep);
	if (tree < 0)
		return -1;
	if ((m->spread && set_attr(tree, m->flags & MOUNT_F_SPREADREC ? AT_RECURSIVE : 0, 0, 0, m->spread) < 0) ||
	    ((m->set || m->clear) && set_attr(tree, 0, m->set, m->clear, 0) < 0) ||
	    (m->below && set_attr(tree, AT_RECURSIVE, m->below, 0, 0) < 0)) {
		int e = errno;
		close(tree);
		errno = e;
		return -1;
	}
	return tree;
}

static int bind_it(struct plain *s, const struct place_mount *m)
{
	struct stat st;
	int at = -1, tree = copy(m->source, m);
	if (tree < 0 || fstat(tree, &st) < 0)
		return program_bad(s->p, "clone %s: %s", m->source, strerror(errno));
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return program_bad(s->p, "%s is neither a file nor a directory", m->source);
	at = plain_place(s->rootfd, m->target, S_ISDIR(st.st_mode));
	if (at < 0)
		return program_bad(s->p, "find %s: %s", m->target, strerror(errno));
	if (forbidden(s, at))
		return program_bad(s->p, "%s is no place for a mount", m->target);
	if (plain_attach(tree, at) < 0)
		return program_bad(s->p, "mount %s: %s", m->target, strerror(errno));
	close(at);
	close(tree);
	return 0;
}

/* configure says one option of a file system: a flag, or a name and a value. */
static int configure(int fs, const char *option)
{
	char name[128];
	size_t n = strcspn(option, "=");
	if (n == 0 || n >= sizeof name)
		return -1;
	memcpy(name, option, n);
	name[n] = 0;
	if (!option[n])
		return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, name, NULL, 0);
	return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, name, option + n + 1, 0);
}

/* make makes a file system that is mounted nowhere yet. */
static int make(struct plain *s, const char *type, const struct place_mount *m)
{
	int mnt = -1, fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
	int ok = fs >= 0 && syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", m->source, 0) == 0;
	const char *o = m->data;
	for (uint32_t i = 0; ok && i < m->ndata; i++, o += strlen(o) + 1)
		ok = configure(fs, o) == 0;
	if (ok && syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, m->set);
	if (mnt < 0)
		program_bad(s->p, "make %s for %s: %s", type, m->target, strerror(errno));
	if (fs >= 0)
		close(fs);
	return mnt;
}

/* Linux's numbers for the devices that every container has. */
static const struct {
	const char *name;
	unsigned major, minor;
} nodes[] = { { "null", 1, 3 },	 { "zero", 1, 5 },    { "full", 1, 7 },
	      { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 } };

static const char *const links[][2] = { { "pts/ptmx", "ptmx" },
					{ "/proc/self/fd", "fd" },
					{ "/proc/self/fd/0", "stdin" },
					{ "/proc/self/fd/1", "stdout" },
					{ "/proc/self/fd/2", "stderr" } };

static int fill_dev(int dev)
{
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
		if (mknodat(dev, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
		    fchmodat(dev, nodes[i].name, 0666, 0) < 0) /* whatever the umask is */
			return -1;
	for (size_t i = 0; i < sizeof links / sizeof *links; i++)
		if (symlinkat(links[i][0], dev, links[i][1]) < 0)
			return -1;
	return access("/proc/kcore", F_OK) == 0 ? symlinkat("/proc/kcore", dev, "core") : 0;
}

/* groups_shown has the container see its own group of each hierarchy, each below a name of the mount's. */
static int groups_shown(struct plain *s, int top, const struct place_mount *m)
{
	size_t at = 0;
	struct span v;
	while (tag_next(s->m, &at, TAG_TREE, &v)) {
		const char *nul = memchr(v.p, 0, v.n);
		char *source = nul ? span_dup((struct span){ nul + 1, (uint32_t)(v.p + v.n - nul - 1) }) : NULL;
		if (!source || nul == v.p || memchr(v.p, '/', (size_t)(nul - v.p)))
			return program_bad(s->p, "hierarchy is not valid");
		int tree = copy(source, m), dir = tree < 0 ? -1 : step(top, v.p, 1);
		if (dir < 0 || plain_attach(tree, dir) < 0)
			return program_bad(s->p, "show %s: %s", source, strerror(errno));
		close(tree);
		close(dir);
		if (!memchr(v.p, ',', (size_t)(nul - v.p)))
			continue;
		char list[256], *rest = list, *one;
		if (join_text(list, sizeof list, v.p, NULL) >= sizeof list)
			return program_bad(s->p, "hierarchy is not valid");
		while ((one = strsep(&rest, ",")))
			if (symlinkat(v.p, top, one) < 0 && errno != EEXIST)
				return program_bad(s->p, "show %s: %s", source, strerror(errno));
	}
	return set_attr(top, 0, m->set, 0, 0) < 0 ? program_bad(s->p, "show groups: %s", strerror(errno)) : 0;
}

/* system_it mounts what the kernel makes. Its places may not be links, for all else trusts in what is there. */
static int system_it(struct plain *s, const struct place_mount *m)
{
	static const char *const types[] = { [MOUNT_PROC] = "proc", [MOUNT_SYS] = "sysfs",    [MOUNT_DEV] = "tmpfs",
					     [MOUNT_PTS] = "devpts", [MOUNT_MQUEUE] = "mqueue", [MOUNT_GROUPS] = "tmpfs",
					     [MOUNT_UNIFIED] = "cgroup2" };
	struct place_mount own = *m;
	int groups = m->kind == MOUNT_GROUPS || m->kind == MOUNT_UNIFIED;
	if (m->kind == MOUNT_GROUPS) {
		own.set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
		own.source = "tmpfs";
		own.data = "mode=755";
		own.ndata = 1;
	}
	int at = plain_open(s->rootfd, m->target + 1, O_PATH | O_DIRECTORY, OWN);
	/* All but the groups, whose place the kernel has, are at the root or on the container's own /dev. */
	if (at < 0 && errno == ENOENT && !groups)
		at = mkdirat(s->rootfd, m->target + 1, 0755) < 0
			     ? -1
			     : plain_open(s->rootfd, m->target + 1, O_PATH | O_DIRECTORY, OWN);
	if (at < 0)
		return program_bad(s->p, "find %s: %s", m->target, strerror(errno));
	int mnt = make(s, types[m->kind], &own);
	if (mnt < 0)
		return -1;
	if (m->kind == MOUNT_DEV && fill_dev(mnt) < 0)
		return program_bad(s->p, "make devices: %s", strerror(errno));
	if (plain_attach(mnt, at) < 0)
		return program_bad(s->p, "mount %s: %s", m->target, strerror(errno));
	if (m->kind == MOUNT_GROUPS && groups_shown(s, mnt, m) < 0)
		return -1;
	close(mnt);
	close(at);
	return 0;
}

/* open_root makes the root a mount of its own, in a namespace from which no mount goes to the host. */
static int open_root(struct plain *s)
{
	char path[PATH_MAX];
	if (mount("", "/", "", MS_SLAVE | MS_REC, "") < 0)
		return program_bad(s->p, "part mounts from the host's: %s", strerror(errno));
	if (join_text(path, sizeof path, s->root, NULL) >= sizeof path)
		return program_bad(s->p, "root has a path that is too long");
	/* What the root is on gets nothing from the host any more: what is at the path, or above it. */
	while (mount("", path, "", MS_PRIVATE, "") < 0) {
		char *slash = strrchr(path, '/');
		if (errno != EINVAL || !slash || !path[1])
			return program_bad(s->p, "make mount of root private: %s", strerror(errno));
		slash[slash == path] = 0;
	}
	struct place_mount m = { .flags = MOUNT_F_REC };
	int at = open(s->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	s->rootfd = copy(s->root, &m);
	if (at < 0 || s->rootfd < 0 || plain_attach(s->rootfd, at) < 0)
		return program_bad(s->p, "mount root: %s", strerror(errno));
	close(at);
	return 0;
}

int plain_mounts(struct plain *s)
{
	if (open_root(s) < 0)
		return -1;
	for (uint32_t i = 0; i < s->nmounts; i++)
		if ((s->mounts[i].kind == MOUNT_BIND ? bind_it(s, &s->mounts[i]) : system_it(s, &s->mounts[i])) < 0)
			return -1;
	return 0;
}
