/*
 * What a keeper is before it listens. See sandbox.c.
 */
#ifndef BERTH_SANDBOX_H
#define BERTH_SANDBOX_H

#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

extern pid_t pid1;
extern const char *launchcg; /* launchers' cgroup.procs, NUL after each, empty at the end */
int sandbox_setup(const struct msg *conf, char *err, size_t size);
int sandbox_listen(void);
void set_title(const char *title);
extern char **main_argv;
#endif
