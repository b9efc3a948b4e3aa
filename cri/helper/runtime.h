/*
 * Containers of another OCI runtime. See runtime.c.
 */
#ifndef BERTH_RUNTIME_H
#define BERTH_RUNTIME_H

#include <sys/types.h>

#include "entry.h"
#include "launch.h"

int runtime_start(const struct launch *l, pid_t *pid, int *sock);
void runtime_enter(struct entry *e) __attribute__((noreturn));
void veiled(char **argv) __attribute__((noreturn));
#endif
