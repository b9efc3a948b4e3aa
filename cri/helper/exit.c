/* How containers end: exit records, OOM kills, and who is told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exit.h"
#include "groups.h"
#include "proto.h"
#include "run.h"
#include "state.h"
#include "streams.h"
#include "sys.h"
#include "wire.h"

static struct conn *watchers;

/*
 * oom_kills reads the counter of a memory cgroup: in memory.events of cgroup v2
 * or memory.oom_control of v1, both "oom_kill <n>" on a line of its own. The
 * kernel counts before the victim dies. A group that is gone has -1.
 */
static long oom_kills(const char *dir)
{
	static const char *names[] = { "memory.events", "memory.oom_control" };
	char path[PATH_MAX], buf[1024];
	for (int i = 0; i < 2; i++) {
		if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= (int)sizeof path)
			return -1;
		if (read_path(AT_FDCWD, path, buf, sizeof buf) < 0)
			continue;
		for (char *line = buf; line; line = strchr(line, '\n')) {
			line += *line == '\n';
			if (strncmp(line, "oom_kill ", 9) == 0)
				return strtol(line + 9, NULL, 10);
		}
		return 0;
	}
	return -1;
}

/* oom_above is the counter of the group that a memory cgroup is in: on v2 it has those below, too. */
static long oom_above(const char *dir)
{
	char above[PATH_MAX];
	const char *end = strrchr(dir, '/');
	if (!end || end - dir >= (int)sizeof above)
		return -1;
	memcpy(above, dir, end - dir);
	above[end - dir] = 0;
	return oom_kills(above);
}

/* oom_begin is called before there is a process in the container's group. */
void oom_begin(struct ctr *k)
{
	k->oom_before = k->memcg ? oom_above(k->memcg) : -1;
}

/*
 * oom_killed: a clean end is no OOM kill, even when a child of it met one.
 * systemd removes the group of a scope as soon as its last process has ended,
 * and its counter with it, perhaps before it is read here. Then a SIGKILL with
 * a kill in the pod's group since the container was made is taken for one.
 */
static int oom_killed(struct ctr *k, int status)
{
	if (status == 0 || !k->memcg)
		return 0;
	long n = oom_kills(k->memcg);
	if (n >= 0)
		return n > 0;
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && k->oom_before >= 0 &&
	       oom_above(k->memcg) > k->oom_before;
}

/* record_state writes c/<id>; see parseState of cri/keeper for its format. */
int record_state(struct ctr *k, const char *phase)
{
	char text[4096];
	int n = snprintf(text, sizeof text, "1 %s %d %llu %lld\n%s\n", phase, k->pid,
			 (unsigned long long)(k->pid ? start_time(k->pid) : 0), (long long)k->started_at,
			 k->error ? k->error : "");
	if (n >= (int)sizeof text)
		n = sizeof text - 1;
	return write_record("c", k->id, text, (size_t)n);
}

static void tell(struct ctr *k, struct conn *c)
{
	struct reply r;
	reply_start(&r, MSG_EXIT);
	reply_bytes(&r, TAG_ID, k->id, strlen(k->id));
	reply_u32(&r, TAG_PID, (uint32_t)k->pid);
	reply_u32(&r, TAG_STATUS, (uint32_t)k->status);
	reply_u32(&r, TAG_OOM, (uint32_t)k->oom);
	reply_u64(&r, TAG_STARTED, (uint64_t)k->started_at);
	reply_u64(&r, TAG_FINISHED, (uint64_t)k->finished_at);
	if (reply_send(&r, c->s.fd, -1) < 0)
		/* It would miss one: it has to come again and read the records. */
		conn_close(c);
}

/* ctr_exited is called once, when the container's init has been reaped. */
void ctr_exited(struct ctr *k, int status)
{
	char text[160];
	struct conn *next;

	if (k->phase == LAUNCHING) {
		run_reports();
		if (k->phase == LAUNCHING) {
			/* It never started; its launcher tells why. */
			k->pid = 0;
			return;
		}
	}
	k->phase = EXITED;
	k->status = status;
	k->finished_at = now_ns();
	k->oom = oom_killed(k, status);
	stdio_drain(k);
	groups_close(k->groups);
	k->groups = NULL;
	int n = snprintf(text, sizeof text, "1 %d %d %d %lld %lld\n", k->pid, status, k->oom,
			 (long long)k->started_at, (long long)k->finished_at);
	write_record("exit", k->id, text, (size_t)n);
	for (struct conn *c = watchers; c; c = next) {
		next = c->next;
		tell(k, c);
	}
}

void watch_request(struct conn *c)
{
	struct reply r;
	c->kind = WATCHER;
	c->next = watchers;
	watchers = c;
	reply_start(&r, MSG_OK);
	reply_send(&r, c->s.fd, -1);
}

void watch_gone(struct conn *c)
{
	for (struct conn **p = &watchers; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			return;
		}
}

void forget_request(struct conn *c, struct msg *m)
{
	static const char *dirs[] = { "exit", "c" };
	struct span id = tag_str(m, TAG_ID);
	struct ctr *k = ctr_find(id);
	char path[IDMAX + 16];
	struct reply r;

	if (k && k->phase != EXITED) {
		reply_error(c->s.fd, EBUSY, "container is running");
		return;
	}
	if (id.n == 0 || id.n > IDMAX || id.p[0] == '.' || memchr(id.p, '/', id.n) || memchr(id.p, 0, id.n)) {
		reply_error(c->s.fd, EINVAL, "container id is not valid");
		return;
	}
	if (k)
		ctr_free(k);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%.*s", dirs[i], (int)id.n, id.p);
		if (unlinkat(dirfd_, path, 0) < 0 && errno != ENOENT) {
			reply_error(c->s.fd, errno, "remove %s: %s", path, strerror(errno));
			return;
		}
	}
	reply_start(&r, MSG_OK);
	reply_send(&r, c->s.fd, -1);
}
