/*
 * Launchers. See launch.c.
 */
#ifndef BERTH_LAUNCH_H
#define BERTH_LAUNCH_H

#include <sys/types.h>

#include "wire.h"

struct launch {
	const char *id;
	char *bundle, *state;
	int fds[4]; /* stdin, stdout, stderr, console; -1 for those there are not */
	const struct msg *m; /* the request */
};
int launcher_start(const struct launch *l, pid_t *pid, int *sock);
void launcher_become(const struct launch *l, int sock, int console) __attribute__((noreturn));
void spare_start(void);
void spare_move(void);
int spare_check(void);
int spare_is(pid_t pid);
void spare_reaped(pid_t pid);
#endif
