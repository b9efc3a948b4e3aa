/*
 * The cgroups of a container, kept open from its first exec to its end: each
 * exec joins all of them, on cgroup v1 ten, and to find one by its path takes
 * longer than to join it. A group can be removed while it is open here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "groups.h"
#include "proto.h"
#include "state.h"
#include "sys.h"
#include "wire.h"

#define CGROUP2_MAGIC 0x63677270

/*
 * Of the thousand files that a process may have open as a rule, half stay free
 * for connections and output. The kernel gives the least number that is free,
 * so the numbers tell how many there are.
 */
#define FDMAX 512

static const char procs[] = "/cgroup.procs";
#define NPROCS (sizeof procs - 1)

/* cgroup2_open opens the directory of a cgroup.procs file when it is of v2. */
int cgroup2_open(const char *file)
{
	struct statfs fs;
	char path[4096];
	size_t n = strlen(file);
	if (n >= sizeof path || n <= NPROCS || strcmp(file + n - NPROCS, procs) != 0)
		return -1;
	memcpy(path, file, n - NPROCS);
	path[n - NPROCS] = 0;
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && (fstatfs(fd, &fs) < 0 || fs.f_type != CGROUP2_MAGIC)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* same says whether these are the groups a request names. */
static int same(const struct groups *g, const struct msg *m)
{
	size_t at = 0, done = 0;
	struct span v;
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		if (done + v.n + 1 > g->size || memcmp(g->list + done, v.p, v.n) != 0 || g->list[done + v.n])
			return 0;
		done += v.n + 1;
	}
	return done == g->size;
}

static struct groups *groups_open(const struct msg *m)
{
	size_t at = 0, size = 0;
	struct span v;
	int n = 0;
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		if (v.n == 0 || memchr(v.p, 0, v.n) || ++n > GROUPSMAX)
			return NULL;
		size += v.n + 1;
	}
	struct groups *g = calloc(1, sizeof *g + size);
	if (!g)
		return NULL;
	g->dir = -1;
	for (at = 0; tag_next(m, &at, TAG_CGROUP, &v);) {
		memcpy(g->list + g->size, v.p, v.n);
		g->size += v.n + 1;
	}
	if (n == 1)
		g->dir = cgroup2_open(g->list);
	for (const char *p = g->list; g->dir < 0 && p < g->list + g->size; p += strlen(p) + 1) {
		int fd = open_cgroup((struct span){ p, (uint32_t)strlen(p) });
		if (fd < 0) {
			groups_close(g);
			return NULL;
		}
		g->fds[g->n++] = fd;
		if (fd >= FDMAX) {
			groups_close(g);
			return NULL;
		}
	}
	return g;
}

/* groups_of returns the groups of a container as a request names them; NULL when they cannot be kept. */
const struct groups *groups_of(struct ctr *k, const struct msg *m)
{
	/* A directory of v2 that was removed, and may have been made again, has no files. */
	if (k->groups && same(k->groups, m) &&
	    (k->groups->dir < 0 || faccessat(k->groups->dir, "cgroup.procs", F_OK, 0) == 0))
		return k->groups;
	groups_close(k->groups);
	k->groups = groups_open(m);
	return k->groups;
}

void groups_close(struct groups *g)
{
	if (!g)
		return;
	if (g->dir >= 0)
		close(g->dir);
	for (int i = 0; i < g->n; i++)
		close(g->fds[i]);
	free(g);
}

/* groups_join makes this process a member. 0 if it could not be one everywhere: the groups may have been made again. */
int groups_join(const struct groups *g)
{
	for (int i = 0; i < g->n; i++)
		if (pwrite(g->fds[i], "0", 1, 0) != 1)
			return 0;
	return 1;
}

/*
 * cgroup2_of opens the cgroup a process is in. A container that manages cgroups
 * of its own has left the one it was given, and that one then takes no process.
 */
int cgroup2_of(pid_t pid)
{
	char path[64], text[4096], dir[4200];
	snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
	if (read_path(AT_FDCWD, path, text, sizeof text) <= 0)
		return -1;
	char *p = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (!p)
		return -1;
	p = strchr(p, '/');
	if (!p)
		return -1;
	p[strcspn(p, "\n")] = 0;
	snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", p);
	return open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
}
