/*
 * The keeper: one thread that waits for requests and for its children, and hands
 * them on to the parts that they concern. It never starts the Go runtime of the
 * binary it is in. See docs/architecture.md for its place, proto.h for how it is
 * spoken to.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"
#include "exit.h"
#include "hush.h"
#include "keeper.h"
#include "launch.h"
#include "log.h"
#include "loop.h"
#include "proto.h"
#include "run.h"
#include "sandbox.h"
#include "state.h"
#include "streams.h"
#include "sys.h"
#include "wire.h"

struct ctr *ctrs;
static int stopping;

struct ctr *ctr_find(struct span id)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		if (strlen(k->id) == id.n && memcmp(k->id, id.p, id.n) == 0)
			return k;
	return NULL;
}

static void unlist(struct conn **list, struct conn *c)
{
	for (; *list; list = &(*list)->next)
		if (*list == c) {
			*list = c->next;
			return;
		}
}

void conn_close(struct conn *c)
{
	switch (c->kind) {
	case FRESH:
		break;
	case WAITER:
		unlist(&c->ctr->waiters, c);
		break;
	case WATCHER:
		watch_gone(c);
		break;
	case EXECUTOR:
		exec_gone(c);
		break;
	case ATTACHER:
		attach_gone(c);
		unlist(&c->ctr->attached, c);
		break;
	}
	source_del(&c->s);
	free(c->pending);
	free(c);
}

/* reply_not_running says why there is no process, or none of its output. */
void reply_not_running(struct conn *c, struct ctr *k)
{
	if (!k)
		reply_error(c->s.fd, ESRCH, "it is not known");
	else if (k->phase == LAUNCHING)
		reply_error(c->s.fd, ESRCH, "it is being started");
	else if (k->phase == EXITED)
		reply_error(c->s.fd, ESRCH, "its first process, %d, ended with wait status %d", (int)k->pid, k->status);
	else
		reply_error(c->s.fd, ESRCH, "it has closed its output");
}

static void signal_request(struct conn *c, struct msg *m)
{
	struct ctr *k = ctr_find(tag_str(m, TAG_ID));
	uint32_t sig = tag_u32(m, TAG_SIGNAL);
	struct reply r;
	if (k && k->phase == LAUNCHING && sig == SIGKILL && k->launcher) {
		/* A start that hangs: its end is the launcher's. */
		kill_tree(k->launcher, 1);
		reply_start(&r, MSG_OK);
		reply_send(&r, c->s.fd, -1);
		return;
	}
	if (k && k->request && sig == SIGKILL) {
		run_failed(k, "it was ended before it was started");
		reply_start(&r, MSG_OK);
		reply_send(&r, c->s.fd, -1);
		return;
	}
	if (!k || k->phase != RUNNING) {
		reply_not_running(c, k);
		return;
	}
	if (sig > 64 || kill(k->pid, (int)sig) < 0) {
		reply_error(c->s.fd, EINVAL, "signal %u: %s", sig, sig > 64 ? strerror(EINVAL) : strerror(errno));
		return;
	}
	reply_start(&r, MSG_OK);
	reply_send(&r, c->s.fd, -1);
}

static void small_request(struct conn *c, struct msg *m)
{
	struct reply r;
	struct ctr *k = NULL;
	int err = 0;
	if (m->h.op == MSG_REOPEN || m->h.op == MSG_RESIZE) {
		k = ctr_find(tag_str(m, TAG_ID));
		if (!k) {
			reply_not_running(c, k);
			return;
		}
	}
	reply_start(&r, MSG_OK);
	switch (m->h.op) {
	case MSG_HELLO:
		reply_u32(&r, TAG_VERSION, PROTO_VERSION);
		reply_u32(&r, TAG_PID, (uint32_t)getpid());
		reply_u32(&r, TAG_PID1, (uint32_t)pid1);
		break;
	case MSG_REOPEN:
		log_close(&k->log);
		err = log_open(&k->log);
		break;
	case MSG_RESIZE:
		err = ctr_resize(k, tag_u32(m, TAG_WIDTH), tag_u32(m, TAG_HEIGHT));
		break;
	case MSG_STOP:
		stopping = 1;
		break;
	default:
		reply_error(c->s.fd, ENOSYS, "operation %u is not known", m->h.op);
		return;
	}
	if (err)
		reply_error(c->s.fd, -err, "%s", strerror(-err));
	else
		reply_send(&r, c->s.fd, -1);
}

static void request(struct conn *c, struct msg *m)
{
	switch (m->h.op) {
	case MSG_RUN:
		run_request(c, m);
		return;
	case MSG_WATCH:
		watch_request(c);
		return;
	case MSG_FORGET:
		forget_request(c, m);
		return;
	case MSG_EXEC:
		exec_request(c, m);
		return;
	case MSG_ATTACH:
		attach_request(c, m);
		return;
	case MSG_SIGNAL:
		signal_request(c, m);
		return;
	default:
		small_request(c, m);
	}
}

static void conn_ready(struct source *s, uint32_t events)
{
	struct conn *c = (struct conn *)s;
	struct msg m;
	(void)events;
	int got = msg_recv(s->fd, &m);
	if (got == 0 && errno == EAGAIN)
		return;
	if (got < 0)
		reply_error(s->fd, -got, "message cannot be read: %s", strerror(-got));
	if (got <= 0) {
		conn_close(c);
		return;
	}
	switch (c->kind) {
	case FRESH:
		request(c, &m);
		break;
	case EXECUTOR:
		exec_message(c, &m);
		break;
	case ATTACHER:
		attach_message(c, &m);
		break;
	default:
		break;
	}
	msg_free(&m);
}

static struct source listener;

/* accept_one says whether there was somebody. */
static int accept_one(int from)
{
	struct ucred who;
	socklen_t n = sizeof who;
	int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		/* Out of descriptors, the one that waits would be told of at once again. */
		if (errno == EMFILE || errno == ENFILE)
			nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
		return 0;
	}
	struct conn *c = NULL;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == 0)
		c = calloc(1, sizeof *c);
	if (!c) {
		close(fd);
		return 1;
	}
	source_add(&c->s, fd, EPOLLIN, conn_ready);
	return 1;
}

static void accept_ready(struct source *s, uint32_t events)
{
	(void)events;
	accept_one(s->fd);
}

static void reaped(pid_t pid, int status)
{
	for (int again = 0; again < 2; again++) {
		for (struct ctr *k = ctrs; k; k = k->next) {
			if (k->launcher == pid) {
				run_reaped_launcher(k, status);
				return;
			}
			if (k->pid == pid && k->phase != EXITED) {
				ctr_exited(k, status);
				return;
			}
		}
		if (exec_reaped(pid, status))
			return;
		/*
		 * A container that was over before its launcher's word was
		 * read: the launcher wrote it before it died, and only its
		 * death made the container our child.
		 */
		run_reports();
	}
	spare_reaped(pid);
	if (pid == pid1)
		pid1 = 0;
}

void reap(void)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		reaped(pid, status);
}

/*
 * listen_again is for an agent that misses the socket. Without another one the
 * old one stays. Who has reached that in time is not hung up on: of several who
 * miss it at once, each asks for another one.
 */
static void listen_again(void)
{
	int fd = sandbox_listen();
	if (fd < 0)
		return;
	while (accept_one(listener.fd))
		;
	source_del(&listener);
	source_add(&listener, fd, EPOLLIN, accept_ready);
}

static void signal_ready(struct source *s, uint32_t events)
{
	struct signalfd_siginfo si;
	(void)events;
	int term = 0;
	while (read(s->fd, &si, sizeof si) == sizeof si) {
		if (si.ssi_signo == SIGTERM)
			term = 1;
		if (si.ssi_signo == SIGHUP && !stopping)
			listen_again();
	}
	reap();
	/* The machine goes down: a keeper with nothing to keep need not stay. */
	if (term) {
		for (struct ctr *k = ctrs; k; k = k->next)
			if (k->phase != EXITED)
				return;
		stopping = 1;
	}
}

/* stop_all kills what is left, which by now may be anybody's orphans, and says whether all have ended. */
static int stop_all(void)
{
	struct timespec pause = { 0, 2000000 };
	for (int i = 0; i < 1000; i++) {
		kill_tree(getpid(), 0);
		hush_end();
		reap();
		siginfo_t si;
		if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD)
			return 1;
		nanosleep(&pause, NULL);
	}
	return 0;
}

int keeper_init(int sock)
{
	static struct source signals;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	int sfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (sfd < 0 || loop_open() < 0)
		return -1;
	source_add(&listener, sock, EPOLLIN, accept_ready);
	source_add(&signals, sfd, EPOLLIN, signal_ready);
	return 0;
}

void keeper_run(void)
{
	int idle = 250;
	while (!stopping) {
		int n = loop_turn(idle);
		if (n < 0)
			break;
		if (n == 0 && idle != 250)
			scratch_free();
		/*
		 * Not idle yet as long as there is something to be given back. The
		 * buffers are kept from one probe to the next.
		 */
		idle = spare_check() ? 250 : scratch_held() ? 2500 : -1;
	}
	/* That it is gone is how a keeper says that it has left nobody. */
	if (stop_all())
		unlinkat(dirfd_, "keeper.sock", 0);
}
