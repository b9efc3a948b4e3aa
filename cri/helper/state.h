/*
 * What the keeper knows: its containers, and who is connected. It is all of one
 * thread. See keeper.c.
 */
#ifndef BERTH_STATE_H
#define BERTH_STATE_H

#include <stdint.h>
#include <sys/types.h>

#include "log.h"
#include "loop.h"
#include "wire.h"

struct ctr;

/* One output of a container. */
struct stream {
	struct source s;
	struct ctr *ctr;
	int num; /* STREAM_* */
	char *part; /* the beginning of a line, up to LINEMAX */
	uint32_t npart;
};

enum phase { LAUNCHING, RUNNING, EXITED };

struct report {
	struct source s;
	struct ctr *ctr;
};

struct input {
	struct source s;
	struct ctr *ctr;
};

struct ctr {
	struct ctr *next;
	char id[IDMAX + 1];
	enum phase phase;
	pid_t launcher, pid;
	uint32_t flags;
	int failed; /* the launcher gave up; waits to be reaped */
	int started; /* the launcher said so */
	int64_t started_at, finished_at;
	int status, oom;
	char *memcg;
	long oom_before; /* OOM kills in the pod's group when it was made, -1: not known */
	struct log log;
	struct stream out[2];
	struct input in; /* stdin, or the terminal's master when it is to be written */
	struct report report, console;
	char *error;
	char *left; /* why libcontainer has started it, and C has not */
	struct groups *groups; /* its cgroups, once an exec has joined them */
	struct conn *waiters; /* who asked for it to run */
	struct conn *attached;
	/* hush.c */
	ino_t joins; /* a PID namespace that others are in, or 0 */
	ino_t pidns; /* the one its program is in, once it runs */
	int looks;   /* it may trace what it sees */
	char *freezer; /* its cgroup, NULL where it cannot be frozen */
	enum { NOT_FROZEN, FROZEN_BY_US, FROZEN_BEFORE } frozen;
	struct request *request; /* what waits to be started */
};

enum kind { FRESH, WAITER, WATCHER, EXECUTOR, ATTACHER };

struct conn {
	struct source s;
	enum kind kind;
	struct conn *next; /* in the list of its kind */
	struct ctr *ctr;
	struct exec *exec;
	char *pending; /* stdin the container has not taken yet */
	uint32_t npending, opending;
};

extern struct ctr *ctrs;
struct ctr *ctr_find(struct span id);
void conn_close(struct conn *c);
void reply_not_running(struct conn *c, struct ctr *k);
void reap(void);
#endif
