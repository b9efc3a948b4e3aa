/*
 * What is executed in containers. See exec.c.
 */
#ifndef BERTH_EXEC_H
#define BERTH_EXEC_H

#include <sys/types.h>

#include "state.h"
#include "wire.h"

void exec_request(struct conn *c, struct msg *m);
void exec_message(struct conn *c, struct msg *m);
void exec_gone(struct conn *c);
int exec_reaped(pid_t pid, int status);
int exec_has(pid_t pid);
#endif
