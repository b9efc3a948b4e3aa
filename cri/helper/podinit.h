/*
 * Process 1 of a pod's PID namespace. See podinit.c.
 */
#ifndef BERTH_PODINIT_H
#define BERTH_PODINIT_H

#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

#define BIRTHGROUPS 32
struct birth {
	int said[2];
	int n, groups[BIRTHGROUPS]; /* the files to write to, to be in them */
};
int birth_prepare(struct birth *b, const struct msg *m, char *err, size_t size);
pid_t birth(struct birth *b, int user);
int birth_wait(struct birth *b, char *err, size_t size);
void birth_over(struct birth *b);
#endif
