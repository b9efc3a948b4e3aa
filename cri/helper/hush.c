/*
 * The start of a container in a PID namespace that others are in already.
 *
 * libcontainer, and any other OCI runtime, has the container's init born in that
 * namespace while it still has the host's root and all capabilities. A container
 * with CAP_SYS_PTRACE that sees it opens its /proc/N/root and is root on the
 * host. So nobody who could look runs meanwhile: their cgroups are frozen until
 * the program is executed, or until the start has failed and all that it has
 * left is dead. What is told to run in a frozen group, as an exec is, is frozen
 * before its next instruction. And no two such starts are under way at once, of
 * which one's program could look at the other's init.
 *
 * A keeper that is killed meanwhile leaves them frozen, beside an init that
 * may be alive. Its pod is over then: the agent kills who is in the groups and
 * thaws them after that, in this order.
 *
 * Where no container may trace others, none of this takes place.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"
#include "hush.h"
#include "launch.h"
#include "loop.h"
#include "proto.h"
#include "run.h"
#include "sandbox.h"
#include "state.h"
#include "sys.h"
#include "wire.h"

#define TICK_NS 500000
#define SECOND_NS 1000000000ll

/* A request that waits. Its fields follow it. */
struct request {
	struct header h;
	size_t n;
	char p[];
};

static struct {
	struct source timer;
	enum { IDLE, FREEZING, LAUNCHED, ENDING } step;
	struct ctr *ctr; /* whose start it is; NULL once that has failed */
	int64_t deadline;
	uint64_t since; /* when it began, as start_time has it */
} hush = { .timer.fd = -1 };

static int64_t freeze_ns, launch_ns; /* see TAG_FREEZELIM and TAG_LAUNCHLIM */

/* hush_limits takes from the keeper's configuration how long others may be held up. */
void hush_limits(const struct msg *m)
{
	freeze_ns = tag_u32(m, TAG_FREEZELIM) * (SECOND_NS / 1000);
	launch_ns = tag_u32(m, TAG_LAUNCHLIM) * (SECOND_NS / 1000);
}

/* hush_launch_ns is how long a start may take that holds up others. */
int64_t hush_launch_ns(void)
{
	return launch_ns;
}

static ino_t inode(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* hush_take takes from a request what is of interest here. */
void hush_take(struct ctr *k, const struct msg *m)
{
	char *path = span_dup(tag_str(m, TAG_PIDNS));
	if (path)
		k->joins = inode(path);
	free(path);
	k->looks = tag_has(m, TAG_FREEZER);
	k->freezer = span_dup(tag_str(m, TAG_FREEZER));
}

/*
 * sees says whether a container's processes could look into those of a PID
 * namespace. Some may be left of one that has ended.
 */
static int sees(const struct ctr *k, ino_t pidns)
{
	return k->looks && (k->pidns == pidns || k->joins == pidns);
}

/* hush_wanted says whether the container is not to be started just like that. */
int hush_wanted(const struct ctr *k)
{
	if (!k->joins)
		return 0;
	for (const struct ctr *o = ctrs; o; o = o->next)
		if (sees(o, k->joins))
			return 1;
	return 0;
}

int hush_queue(struct ctr *k, const struct msg *m)
{
	k->request = malloc(sizeof *k->request + m->n);
	if (!k->request)
		return -ENOMEM;
	k->request->h = m->h;
	k->request->n = m->n;
	memcpy(k->request->p, m->p, m->n);
	return 0;
}

static void tick(struct source *s, uint32_t events);

/* arm has tick called again and again. Without a time it is not called any more. */
static int arm(int64_t every)
{
	struct itimerspec t = { { every / SECOND_NS, every % SECOND_NS }, { every / SECOND_NS, every % SECOND_NS } };
	if (hush.timer.fd < 0) {
		int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (fd < 0)
			return -errno;
		source_add(&hush.timer, fd, EPOLLIN, tick);
	}
	return timerfd_settime(hush.timer.fd, 0, &t, NULL) < 0 ? -errno : 0;
}

/* file is a file of a container's cgroup. */
static const char *file(const struct ctr *k, const char *name)
{
	static char path[PATH_MAX];
	join_text(path, sizeof path, k->freezer, "/", name, NULL);
	return path;
}

static int holds(const struct ctr *k, const char *name, const char *text)
{
	char buf[256];
	return read_path(AT_FDCWD, file(k, name), buf, sizeof buf) > 0 && strstr(buf, text) != NULL;
}

/*
 * hold freezes a container: 1 when nothing runs in it any more, 0 when that takes
 * longer, or a negative errno. v1 has to be asked again and again, and tries to
 * freeze who comes in between.
 */
static int hold(struct ctr *k)
{
	if (!k->freezer)
		return -ENOTSUP;
	int v1 = access(file(k, "freezer.state"), F_OK) == 0;
	if (!v1 && access(file(k, "cgroup.freeze"), F_OK) < 0)
		/* The agent removes the group of one that has ended, with all that was in it. */
		return errno == ENOENT && k->phase == EXITED ? 1 : -errno;
	if (k->frozen == NOT_FROZEN) {
		int before = v1 ? holds(k, "freezer.self_freezing", "1") : holds(k, "cgroup.freeze", "1");
		k->frozen = before ? FROZEN_BEFORE : FROZEN_BY_US;
	}
	if (k->frozen == FROZEN_BY_US) {
		int err = v1 ? write_path(file(k, "freezer.state"), "FROZEN", 6) : write_path(file(k, "cgroup.freeze"), "1", 1);
		if (err < 0)
			return (err == -ENOENT || err == -ENODEV) && k->phase == EXITED ? 1 : err;
	}
	return v1 ? holds(k, "freezer.state", "FROZEN") : holds(k, "cgroup.events", "frozen 1");
}

static void release(struct ctr *k)
{
	if (k->frozen == FROZEN_BY_US && write_path(file(k, "freezer.state"), "THAWED", 6) < 0)
		write_path(file(k, "cgroup.freeze"), "0", 1);
	k->frozen = NOT_FROZEN;
}

/* over thaws all, and goes on with who waits. */
static void over(void)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		release(k);
	hush.step = IDLE;
	hush.ctr = NULL;
	arm(0);
	hush_next();
}

static void refuse(const struct ctr *who, const char *why)
{
	struct ctr *k = hush.ctr;
	char text[IDMAX + 400];
	snprintf(text, sizeof text,
		 "container %s has CAP_SYS_PTRACE in the same PID namespace and cannot be frozen until this one is started: %s",
		 who->id, why);
	hush.ctr = NULL; /* nothing has been started: there is nothing to end */
	run_failed(k, text);
	over();
}

static void launch_now(void)
{
	struct ctr *k = hush.ctr;
	struct request *r = k->request;
	struct msg m = { .h = r->h, .p = r->p, .n = r->n };
	k->request = NULL;
	hush.step = LAUNCHED;
	hush.deadline = mono_ns() + launch_ns;
	arm(SECOND_NS);
	run_launch(k, &m);
	free(r);
}

static void freeze(void)
{
	int late = mono_ns() >= hush.deadline;
	struct ctr *waits = NULL;
	for (struct ctr *k = ctrs; k; k = k->next) {
		if (k == hush.ctr || k->request || !sees(k, hush.ctr->joins))
			continue;
		int n = hold(k);
		if (n == -ENOTSUP) {
			refuse(k, "the machine has no freezer cgroup");
			return;
		}
		if (n < 0) {
			refuse(k, strerror(-n));
			return;
		}
		if (n == 0)
			waits = k;
	}
	if (!waits)
		launch_now();
	else if (late)
		refuse(waits, "a process of it does not freeze, as one that waits for a file system which does not answer");
}

/* held_up says whether anybody waits for the start. */
static int held_up(void)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		if (k->frozen || k->request)
			return 1;
	return 0;
}

/* left_by_launcher says whether a child of the keeper may be what a launcher has left. */
static int left_by_launcher(pid_t pid)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		if (k->launcher == pid || (k->pid == pid && k->phase != EXITED))
			return 0;
	return pid != pid1 && !spare_is(pid) && !exec_has(pid) && start_time(pid) >= hush.since;
}

static void step(void)
{
	switch (hush.step) {
	case IDLE:
		break;
	case FREEZING:
		freeze();
		break;
	case LAUNCHED:
		if (mono_ns() < hush.deadline || !held_up() || !hush.ctr->launcher)
			break;
		free(hush.ctr->error);
		hush.ctr->error = strdup("it was not started in time, and others of its pod are frozen until it is");
		kill_tree(hush.ctr->launcher, 1);
		break;
	case ENDING:
		run_reports(); /* by which who has just been started is known */
		/* Of what is killed the children are the keeper's next. */
		if (kill_children(left_by_launcher) == 0)
			over();
		else if (mono_ns() >= hush.deadline)
			arm(SECOND_NS / 10); /* it waits for a file system which does not answer */
		break;
	}
}

static void tick(struct source *s, uint32_t events)
{
	uint64_t n;
	(void)events;
	if (read(s->fd, &n, sizeof n) == sizeof n)
		step();
}

/* hush_next begins with who has waited for the longest, unless a start is under way. */
void hush_next(void)
{
	struct ctr *k = NULL;
	struct timespec t;
	if (hush.step != IDLE)
		return;
	for (struct ctr *o = ctrs; o; o = o->next)
		if (o->request)
			k = o;
	for (struct ctr *o = ctrs; k && o; o = o->next)
		if (o->phase == LAUNCHING && !o->request && o->joins == k->joins)
			return; /* began when there was nobody who could look */
	if (!k)
		return;
	clock_gettime(CLOCK_BOOTTIME, &t);
	long hz = sysconf(_SC_CLK_TCK);
	hush.since = (uint64_t)(t.tv_sec * hz + t.tv_nsec / (SECOND_NS / hz));
	hush.ctr = k;
	hush.step = FREEZING;
	hush.deadline = mono_ns() + freeze_ns;
	int err = arm(TICK_NS);
	if (err < 0)
		refuse(k, strerror(-err));
	else
		step();
}

/* hush_started is told of a program that is executed. */
void hush_started(struct ctr *k)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/pid", k->pid);
	k->pidns = inode(path);
	if (hush.ctr == k)
		over();
	else
		hush_next();
}

/* hush_gone is told of a container that is forgotten, as one is that could not be started. */
void hush_gone(struct ctr *k)
{
	release(k);
	free(k->request);
	k->request = NULL;
	if (hush.ctr == k) {
		hush.ctr = NULL;
		if (hush.step == FREEZING) {
			over();
		} else {
			hush.step = ENDING;
			hush.deadline = mono_ns() + freeze_ns;
			arm(TICK_NS);
		}
	} else if (k->joins) {
		hush_next();
	}
}

/* hush_end is for a keeper that ends and has killed all: on v1 what is frozen does not die. */
void hush_end(void)
{
	for (struct ctr *k = ctrs; k; k = k->next)
		release(k);
}
