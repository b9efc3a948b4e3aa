/*
 * The start of an ordinary container in C. See plain.c.
 */
#ifndef BERTH_PLAIN_H
#define BERTH_PLAIN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launch.h"
#include "program.h"
#include "wire.h"

#define PLAINMAX 1024 /* mounts, paths and groups that a container may have of each */

/* What the starter and its child have in common. */
struct told {
	pid_t pid; /* the child's, by the kernel, before that runs */
	volatile int executes;
	char why[512]; /* it does not */
};

struct place_mount {
	uint32_t kind;			    /* MOUNT_* */
	uint32_t flags;			    /* MOUNT_F_* */
	uint64_t set, clear, below, spread; /* attributes of it, and of all below it, and its propagation */
	const char *target, *source;
	const char *data; /* the file system's own options, a NUL after each */
	uint32_t ndata;
};

struct plain {
	const struct msg *m;
	struct program *p;
	struct told *told;
	const char *root;
	int readonly;
	uint32_t nmounts;
	struct place_mount *mounts;
	uint32_t missing; /* which of 0 to 2 are to be the container's /dev/null, by bits */
	int sock, console; /* to the keeper */
	int rootfd;
	int born; /* in its group, of v2 */
};

int plain_start(const struct launch *l, pid_t *pid, int *sock);
int plain_parse(struct plain *s);
int plain_mounts(struct plain *s);
int plain_enter(struct plain *s);
int plain_protect(struct plain *s);
int plain_place(int root, const char *path, int dir);
int plain_open(int root, const char *path, uint64_t flags, uint64_t resolve);
int plain_attach(int tree, int at);
void plain_init(struct plain *s) __attribute__((noreturn));
#endif
