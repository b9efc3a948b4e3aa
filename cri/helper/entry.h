/*
 * The entry process of an exec. See enter.c, and capture.c for one whose output is
 * collected.
 */
#ifndef BERTH_ENTRY_H
#define BERTH_ENTRY_H

#include <stdint.h>
#include <sys/types.h>

#include "groups.h"
#include "kin.h"
#include "wire.h"

struct entry {
	const struct msg *m;
	pid_t keeper;
	pid_t pid;	  /* the container's init */
	int pidfd;	  /* and a pidfd of it */
	int user;	  /* it is in a user namespace of its own */
	int sock;	  /* to the keeper, or -1 */
	const struct groups *groups;
	struct kin *kin;  /* who is started */
	int stdio[3];	  /* -1 is the container's /dev/null, unless there is a terminal */
	int conn;	  /* the agent's, to answer it instead, with the output, or -1 */
	int out[2];	  /* and where that is read from */
};
void enter(struct entry *e) __attribute__((noreturn));
/* Where they are, once settled. */
enum { ENTRY_SOCK = 3, ENTRY_CONN = 4, ENTRY_OUT = 5 };
extern uintptr_t heap_start; /* where a page of the heap begins, before all that the keeper has there */
void entry_begin(struct entry *e);
void entry_settle(struct entry *e);
void entry_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
void entry_die(struct entry *e, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
void entry_terminal(int sock, int master);
void entry_started(pid_t pid);
void entry_ended(int status);
void entry_undo(const struct entry *e);
void entry_watch(struct entry *e) __attribute__((noreturn));

void capture_pipes(struct entry *e);
void capture(struct entry *e) __attribute__((noreturn));
#endif
