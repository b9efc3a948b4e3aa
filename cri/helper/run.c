/*
 * The start of a container. A launcher (launch.c) creates it through
 * libcontainer and exits: the container's init is then the keeper's child, as
 * the keeper is a subreaper. Over its socket the launcher says "P<pid>" before
 * the container's program runs, "S" when it does, or "E<why not>". Of an ordinary
 * container the launcher is C (plain.c), which says "F<why>" when it leaves it to
 * libcontainer after all, and "P0" when the process it has told of is no more.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exit.h"
#include "groups.h"
#include "hush.h"
#include "launch.h"
#include "log.h"
#include "loop.h"
#include "plain.h"
#include "proto.h"
#include "run.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"
#include "sys.h"
#include "wire.h"

static void console_ready(struct source *s, uint32_t events);

void ctr_free(struct ctr *k)
{
	for (struct ctr **p = &ctrs; *p; p = &(*p)->next)
		if (*p == k) {
			*p = k->next;
			break;
		}
	while (k->waiters)
		conn_close(k->waiters);
	hush_gone(k);
	stdio_close(k);
	source_del(&k->report.s);
	source_del(&k->console.s);
	groups_close(k->groups);
	free(k->log.path);
	free(k->memcg);
	free(k->freezer);
	free(k->error);
	free(k->left);
	free(k);
}

static struct ctr *ctr_new(struct msg *m)
{
	struct span id = tag_str(m, TAG_ID);
	if (id.n == 0 || id.n > IDMAX || id.p[0] == '.' || memchr(id.p, '/', id.n) || memchr(id.p, 0, id.n))
		return NULL;
	struct ctr *k = calloc(1, sizeof *k);
	if (!k)
		return NULL;
	memcpy(k->id, id.p, id.n);
	k->flags = tag_u32(m, TAG_FLAGS);
	k->memcg = span_dup(tag_str(m, TAG_MEMCG));
	oom_begin(k);
	k->log.path = span_dup(tag_str(m, TAG_LOGPATH));
	k->log.max = (int64_t)tag_u64(m, TAG_LOGMAX);
	k->log.files = tag_u32(m, TAG_LOGFILES);
	k->log.fd = -1;
	k->report.s.fd = k->console.s.fd = k->in.s.fd = -1;
	k->report.ctr = k->in.ctr = k;
	for (int i = 0; i < 2; i++) {
		k->out[i].s.fd = -1;
		k->out[i].ctr = k;
		k->out[i].num = STREAM_STDOUT + i;
	}
	hush_take(k, m);
	k->next = ctrs;
	ctrs = k;
	return k;
}

void reply_pid(struct conn *c, struct ctr *k)
{
	struct reply r;
	reply_start(&r, MSG_OK);
	reply_u32(&r, TAG_PID, (uint32_t)k->pid);
	if (k->left)
		reply_bytes(&r, TAG_TEXT, k->left, strlen(k->left));
	reply_send(&r, c->s.fd, -1);
}

/* run_failed tells and records it, and forgets the container: Run may be tried again. */
void run_failed(struct ctr *k, const char *why)
{
	if (!k->error)
		k->error = strdup(why);
	if (k->pid)
		kill(k->pid, SIGKILL);
	k->pid = 0;
	record_state(k, "failed");
	while (k->waiters) {
		struct conn *c = k->waiters;
		reply_error(c->s.fd, 0, "%s", k->error ? k->error : why);
		conn_close(c);
	}
	ctr_free(k);
}

static void report_read(struct ctr *k)
{
	char buf[4096];
	ssize_t n;
	while (k->report.s.fd >= 0 && (n = recv(k->report.s.fd, buf, sizeof buf - 1, MSG_DONTWAIT)) != -1) {
		buf[n] = 0;
		if (n == 0) {
			source_del(&k->report.s);
			return;
		}
		switch (buf[0]) {
		case 'P':
			k->pid = (pid_t)strtol(buf + 1, NULL, 10);
			record_state(k, "launching");
			break;
		case 'S':
			k->started = 1;
			k->phase = RUNNING;
			k->started_at = now_ns();
			/* Who asked may attach at once. */
			if (k->console.s.fd >= 0)
				console_ready(&k->console.s, 0);
			record_state(k, "running");
			hush_started(k);
			while (k->waiters) {
				reply_pid(k->waiters, k);
				conn_close(k->waiters);
			}
			break;
		case 'F':
			free(k->left);
			k->left = strdup(buf + 1);
			break;
		case 'E':
			free(k->error);
			k->error = strdup(buf + 1);
			break;
		}
	}
}

static void report_ready(struct source *s, uint32_t events)
{
	(void)events;
	report_read(((struct report *)s)->ctr);
}

/* run_reports reads what launchers have said so far. */
void run_reports(void)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		if (k->phase == LAUNCHING)
			report_read(k);
}

void run_reaped_launcher(struct ctr *k, int status)
{
	char why[128];
	k->launcher = 0;
	report_read(k);
	source_del(&k->report.s);
	if (k->console.s.fd >= 0)
		console_ready(&k->console.s, 0);
	source_del(&k->console.s);
	if (k->started)
		return;
	if (WIFSIGNALED(status))
		snprintf(why, sizeof why, "launcher was ended by signal %d", WTERMSIG(status));
	else
		snprintf(why, sizeof why, "launcher ended with status %d and without a word", WEXITSTATUS(status));
	run_failed(k, why);
}

/* console_ready takes the terminal's master, which libcontainer's init sends. */
static void console_ready(struct source *s, uint32_t events)
{
	struct ctr *k = (struct ctr *)((char *)s - offsetof(struct ctr, console.s));
	char name[256];
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} ctl;
	struct iovec v = { name, sizeof name };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
	int fd;
	(void)events;
	ssize_t n = recvmsg(s->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&h) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
		int in = k->flags & FLAG_STDIN ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
		stdio_watch(k, in, fd, -1);
	}
	source_del(s);
}

/*
 * plumb makes the container's stdio. The launcher's ends go into l, the others
 * into the loop. 0, or a negative errno with everything closed again.
 */
static int plumb(struct ctr *k, struct launch *l)
{
	int p[2], keep[3] = { -1, -1, -1 }, err;
	for (int i = 0; i < 4; i++)
		l->fds[i] = -1;
	if (k->flags & FLAG_TTY) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
			goto bad;
		l->fds[3] = p[1];
		source_add(&k->console.s, p[0], EPOLLIN, console_ready);
	} else {
		for (int i = 0; i < 3; i++) {
			if (i == 0 && !(k->flags & FLAG_STDIN))
				continue;
			if (pipe2(p, O_CLOEXEC) < 0)
				goto bad;
			l->fds[i] = p[i == 0 ? 0 : 1];
			keep[i] = p[i == 0 ? 1 : 0];
		}
	}
	stdio_watch(k, keep[0], keep[1], keep[2]);
	return 0;
bad:
	err = -errno;
	for (int i = 0; i < 3; i++)
		if (keep[i] >= 0)
			close(keep[i]);
	for (int i = 0; i < 4; i++)
		if (l->fds[i] >= 0)
			close(l->fds[i]);
	return err;
}

static void wait_for(struct conn *c, struct ctr *k)
{
	c->kind = WAITER;
	c->ctr = k;
	c->next = k->waiters;
	k->waiters = c;
}

static int launch(struct ctr *k, struct launch *l)
{
	int sock, err = plumb(k, l);
	if (err < 0)
		return err;
	l->id = k->id;
	if (tag_has(l->m, TAG_RUNTIME))
		err = runtime_start(l, &k->launcher, &sock);
	else if (tag_has(l->m, TAG_ROOT))
		err = plain_start(l, &k->launcher, &sock);
	else
		err = launcher_start(l, &k->launcher, &sock);
	for (int i = 0; i < 4; i++)
		if (l->fds[i] >= 0)
			close(l->fds[i]);
	if (err == 0)
		source_add(&k->report.s, sock, EPOLLIN, report_ready);
	return err;
}

/* run_launch has a launcher start the container, or forgets it. */
void run_launch(struct ctr *k, struct msg *m)
{
	struct launch l = { .m = m, .bundle = span_dup(tag_str(m, TAG_BUNDLE)), .state = span_dup(tag_str(m, TAG_STATE)) };
	char why[256];
	int err = l.bundle && l.state ? launch(k, &l) : -EINVAL;
	free(l.bundle);
	free(l.state);
	if (err == 0)
		return;
	snprintf(why, sizeof why, "start launcher: %s", strerror(-err));
	run_failed(k, why);
}

void run_request(struct conn *c, struct msg *m)
{
	struct ctr *k = ctr_find(tag_str(m, TAG_ID));
	char why[256];
	int err;

	if (k) {
		if (k->phase == LAUNCHING)
			wait_for(c, k);
		else
			reply_pid(c, k);
		return;
	}
	k = ctr_new(m);
	if (!k) {
		reply_error(c->s.fd, EINVAL, "container is not valid");
		return;
	}
	wait_for(c, k);
	const char *step = "write record";
	if ((err = record_state(k, "launching")) < 0)
		goto bad;
	step = "open log";
	if ((err = log_open(&k->log)) < 0)
		goto bad;
	if (!hush_wanted(k)) {
		run_launch(k, m);
		return;
	}
	step = "keep request";
	if ((err = hush_queue(k, m)) < 0)
		goto bad;
	hush_next();
	return;
bad:
	snprintf(why, sizeof why, "%s: %s", step, strerror(-err));
	run_failed(k, why);
}
