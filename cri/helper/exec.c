/*
 * Exec as the keeper sees it. The keeper forks an entry process, which has the
 * program started (enter.c) and stays its parent, outside of the container. Over
 * a socket it says "T" with a terminal's master, "S<pid>", "E<why not>", and in
 * the end "X" with the status. One whose output is wanted in one piece
 * (capture.c) has no such socket: it says all to the agent, and the keeper only
 * sees it end.
 *
 * What the program leaves behind becomes the container's, whose first process
 * then is its parent. It is found again by its session.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entry.h"
#include "exec.h"
#include "groups.h"
#include "kin.h"
#include "loop.h"
#include "proto.h"
#include "runtime.h"
#include "state.h"
#include "sys.h"
#include "wire.h"

struct exec {
	struct source s; /* from the entry process */
	struct exec *next;
	struct conn *conn; /* NULL when the agent hung up */
	struct kin *kin; /* who was started, reaped by the keeper when the entry process is gone */
	pid_t entry, pid; /* 0 when it is gone, or not known */
	int master; /* of the program's terminal, until the agent has it */
	int ended; /* the program has */
	int direct; /* the entry process answers the agent itself (capture.c), and pid is not known */
	int64_t started_at;
};

static struct exec *execs;

static void exec_free(struct exec *x)
{
	for (struct exec **p = &execs; *p; p = &(*p)->next)
		if (*p == x) {
			*p = x->next;
			break;
		}
	if (x->conn)
		x->conn->exec = NULL;
	source_del(&x->s);
	if (x->master >= 0)
		close(x->master);
	if (x->kin)
		kin_free(x->kin);
	free(x);
}

static void tell_exit(struct exec *x, int status)
{
	struct reply r;
	x->ended = 1;
	if (!x->conn)
		return;
	reply_start(&r, MSG_EXIT);
	reply_u32(&r, TAG_PID, (uint32_t)x->pid);
	reply_u32(&r, TAG_STATUS, (uint32_t)status);
	reply_u64(&r, TAG_STARTED, (uint64_t)x->started_at);
	reply_u64(&r, TAG_FINISHED, (uint64_t)now_ns());
	reply_send(&r, x->conn->s.fd, -1);
}

static void tell_started(struct exec *x)
{
	struct reply r;
	x->started_at = now_ns();
	if (!x->conn)
		return;
	reply_start(&r, MSG_OK);
	reply_u32(&r, TAG_PID, (uint32_t)x->pid);
	reply_send(&r, x->conn->s.fd, x->master);
	if (x->master >= 0)
		close(x->master);
	x->master = -1;
}

static void kill_all(const struct exec *x)
{
	kill_exec(getpid(), x->entry, x->kin->settler, x->pid ? x->pid : x->kin->program);
}

/*
 * give_up ends an exec whose program nobody knows of. The entry process lives on:
 * nobody but the parent knows for sure when there is nothing left to kill. What
 * is born after this look it kills itself, reaps all, and ends.
 */
static void give_up(struct exec *x)
{
	kin_give_up(x->kin);
	kill(x->entry, SIGSTOP); /* so that it reaps nobody whose number is still needed */
	kill_all(x);
	kill(x->entry, SIGCONT);
}

static void entry_said(struct exec *x, const char *p, ssize_t n)
{
	int status;
	switch (p[0]) {
	case 'S':
		memcpy(&x->pid, p + 1, sizeof x->pid);
		tell_started(x);
		break;
	case 'E':
		if (x->conn)
			reply_error(x->conn->s.fd, 0, "%.*s", (int)n - 1, p + 1);
		x->ended = 1;
		break;
	case 'X':
		memcpy(&status, p + 1, sizeof status);
		tell_exit(x, status);
		/*
		 * What the program left behind may keep the entry process there, as
		 * long as the agent wants to know; after that it is the container's. One
		 * that was reaped has the number 0, which means this process's own group.
		 */
		if (!x->conn && !kin_given_up(x->kin) && x->entry)
			kill(x->entry, SIGKILL);
		break;
	}
}

static void entry_read(struct exec *x)
{
	char buf[1024];
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} ctl;
	for (;;) {
		struct iovec v = { buf, sizeof buf };
		struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
		ssize_t n = recvmsg(x->s.fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n < 0)
			return;
		struct cmsghdr *c = CMSG_FIRSTHDR(&h);
		if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && x->master < 0)
			memcpy(&x->master, CMSG_DATA(c), sizeof x->master);
		if (n > 0)
			entry_said(x, buf, n);
		if (n == 0) {
			source_pause(&x->s);
			return;
		}
	}
}

static void entry_ready(struct source *s, uint32_t events)
{
	(void)events;
	entry_read((struct exec *)s);
}

/*
 * settle_orphans kills what an entry process was the parent of, and the keeper is
 * now that it was killed: nobody would tell of its end. A settler may have had the
 * program born meanwhile, so it is called again for each that is reaped. When
 * there is nobody left, the exec is forgotten.
 */
static void settle_orphans(struct exec *x)
{
	volatile pid_t *left[] = { &x->kin->settler, &x->kin->program };
	for (int i = 0; i < 2; i++)
		if (*left[i] && !is_child(*left[i]))
			*left[i] = 0;
	if (x->kin->settler || x->kin->program) {
		kin_give_up(x->kin);
		kill_all(x);
	} else if (x->direct || !x->conn || !x->pid) {
		/* As long as the agent is there, it may want what is left of the program's session to be killed. */
		exec_free(x);
	}
}

/* entry_reaped tells of what an entry process has not told any more. */
static void entry_reaped(struct exec *x, int status)
{
	struct conn *c = NULL;
	x->entry = 0;
	if (x->direct) {
		/* It answers before it ends, unless it was killed, and then nobody else does. */
		if (WIFSIGNALED(status)) {
			tell_exit(x, SIGKILL);
			c = x->conn;
		}
	} else {
		entry_read(x);
		/* It was killed. */
		if (!x->ended && x->pid == 0 && x->conn)
			reply_error(x->conn->s.fd, 0, "entry process ended with status %d", status);
		else if (!x->ended)
			tell_exit(x, SIGKILL);
		source_del(&x->s);
	}
	if (c) {
		c->exec = NULL;
		x->conn = NULL;
	}
	settle_orphans(x);
	if (c)
		conn_close(c);
}

/* exec_reaped says whether the pid was that of an entry process, or of somebody that one has left. */
int exec_reaped(pid_t pid, int status)
{
	for (struct exec *x = execs; x; x = x->next) {
		if (x->entry == pid) {
			entry_reaped(x, status);
			return 1;
		}
		if (x->kin->settler != pid && x->kin->program != pid)
			continue;
		if (x->kin->settler == pid)
			x->kin->settler = 0;
		else
			x->kin->program = 0;
		if (!x->entry)
			settle_orphans(x);
		return 1;
	}
	return 0;
}

/* exec_has says whether the process is an exec's. */
int exec_has(pid_t pid)
{
	for (struct exec *x = execs; x; x = x->next)
		if (x->entry == pid || x->pid == pid || x->kin->settler == pid || x->kin->program == pid)
			return 1;
	return 0;
}

void exec_gone(struct conn *c)
{
	struct exec *x = c->exec;
	if (!x)
		return;
	x->conn = NULL;
	if (x->direct)
		return; /* it ends with the program */
	if (!x->entry)
		settle_orphans(x);
	else if (x->ended && !kin_given_up(x->kin))
		kill(x->entry, SIGKILL);
	else if (!x->ended && !x->pid)
		give_up(x);
}

/*
 * exec_message is the agent's word on a program that runs, a signal for it, or the
 * next request after a captured one.
 */
void exec_message(struct conn *c, struct msg *m)
{
	struct exec *x = c->exec;
	uint32_t sig = tag_u32(m, TAG_SIGNAL);
	if (m->h.op == MSG_EXEC && (!x || x->direct)) {
		/* The agent has had its answer; the end of who gave it may not have been seen here yet. */
		if (x)
			x->conn = NULL;
		c->exec = NULL;
		exec_request(c, m);
		return;
	}
	if (m->h.op != MSG_SIGNAL || sig == 0 || sig > 64 || !x)
		return;
	if (sig == SIGKILL && !x->pid && x->entry)
		give_up(x);
	else if (sig == SIGKILL)
		kill_all(x);
	else if (x->pid && !x->ended)
		kill(-x->pid, (int)sig);
}

/* same_user says whether a process is in the keeper's user namespace. */
static int same_user(pid_t pid)
{
	char path[64], num[DECIMAL];
	static ino_t own; /* which does not change */
	struct stat st;
	if (!own && stat("/proc/self/ns/user", &st) == 0)
		own = st.st_ino;
	join_text(path, sizeof path, "/proc/", decimal(num, pid), "/ns/user", NULL);
	return own && stat(path, &st) == 0 && st.st_ino == own;
}

/* take_stdio sorts the files passed along by TAG_FILES. */
static int take_stdio(struct entry *e, struct msg *m)
{
	uint32_t mask = tag_u32(m, TAG_FILES);
	int n = 0;
	for (int i = 0; i < 3; i++)
		e->stdio[i] = mask & (1u << i) && n < m->nfds ? m->fds[n++] : -1;
	return n == m->nfds && n == __builtin_popcount(mask);
}

/* entry_start forks the entry process of an exec; what it returns is fork's. */
static pid_t entry_start(struct ctr *k, struct entry *e)
{
	pid_t pid;
	if (tag_has(e->m, TAG_RUNTIME)) {
		pid = fork();
		if (pid == 0)
			runtime_enter(e);
		return pid;
	}
	e->pidfd = (int)syscall(SYS_pidfd_open, k->pid, 0);
	if (e->pidfd < 0)
		return -1;
	e->groups = groups_of(k, e->m);
	pid = fork();
	if (pid == 0)
		enter(e);
	int err = errno;
	close(e->pidfd);
	errno = err;
	return pid;
}

static struct exec *exec_new(int direct)
{
	struct exec *x = calloc(1, sizeof *x);
	struct kin *kin = kin_new();
	if (!x || !kin) {
		if (kin)
			kin_free(kin);
		free(x);
		errno = ENOMEM;
		return NULL;
	}
	x->kin = kin;
	x->direct = direct;
	x->s.fd = x->master = -1;
	return x;
}

void exec_request(struct conn *c, struct msg *m)
{
	struct ctr *k = ctr_find(tag_str(m, TAG_ID));
	struct entry e = { .m = m, .conn = -1, .sock = -1, .pidfd = -1, .out = { -1, -1 } };
	int p[2] = { -1, -1 };

	if (!k || k->phase != RUNNING) {
		reply_not_running(c, k);
		return;
	}
	int other = tag_has(m, TAG_RUNTIME);
	if (!take_stdio(&e, m) || !tag_has(m, other ? TAG_PROCESS : TAG_ARG)) {
		reply_error(c->s.fd, EINVAL, "message is not valid");
		return;
	}
	int direct = tag_u32(m, TAG_FLAGS) & FLAG_CAPTURE && !other;
	struct exec *x = exec_new(direct);
	if (!x || (!direct && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p) < 0)) {
		reply_error(c->s.fd, errno, "start entry process: %s", strerror(errno));
		if (x)
			exec_free(x);
		return;
	}
	e.keeper = getpid();
	e.pid = k->pid;
	e.user = !other && !same_user(k->pid);
	e.conn = direct ? c->s.fd : -1;
	e.sock = p[1];
	e.kin = x->kin;
	x->entry = entry_start(k, &e);
	int err = errno;
	if (p[1] >= 0)
		close(p[1]);
	if (x->entry < 0) {
		if (err == ESRCH)
			reply_error(c->s.fd, err, "its first process, %d, has just ended", (int)k->pid);
		else
			reply_error(c->s.fd, err, "start entry process: %s", strerror(err));
		if (p[0] >= 0)
			close(p[0]);
		exec_free(x);
		return;
	}
	x->conn = c;
	x->next = execs;
	execs = x;
	c->kind = EXECUTOR;
	c->exec = x;
	if (!direct)
		source_add(&x->s, p[0], EPOLLIN, entry_ready);
}
