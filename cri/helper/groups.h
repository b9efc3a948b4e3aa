/*
 * The cgroups of containers, open. See groups.c.
 */
#ifndef BERTH_GROUPS_H
#define BERTH_GROUPS_H

#include <stddef.h>
#include <sys/types.h>

#include "state.h"
#include "wire.h"

#define GROUPSMAX 32
struct groups {
	int dir; /* the one directory of cgroup v2, to be born in, or -1 */
	int n;
	int fds[GROUPSMAX]; /* what to write to elsewhere */
	size_t size;
	char list[]; /* the paths as they were named, a NUL after each */
};
const struct groups *groups_of(struct ctr *k, const struct msg *m);
void groups_close(struct groups *g);
int groups_join(const struct groups *g);
int cgroup2_of(pid_t pid);
int cgroup2_open(const char *file);
#endif
