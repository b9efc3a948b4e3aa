/* Small things the other parts ask of the kernel. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sys.h"
#include "wire.h"

int dirfd_ = -1;

int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* mono_ns is for what should take a time, whatever the wall clock does. */
int64_t mono_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

ssize_t write_all(int fd, const char *p, size_t n)
{
	size_t done = 0;
	while (done < n) {
		ssize_t w = write(fd, p + done, n - done);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return -1;
		done += (size_t)w;
	}
	return (ssize_t)done;
}

/*
 * join_text writes texts, up to a NULL, one after the other: the whole length,
 * which is more than there is room for when it did not fit. Of printf an entry
 * process would have to map a dozen pages first.
 */
size_t join_text(char *buf, size_t size, ...)
{
	size_t n = 0;
	va_list ap;
	va_start(ap, size);
	for (const char *s; (s = va_arg(ap, const char *));)
		for (; *s; s++, n++)
			if (n + 1 < size)
				buf[n] = *s;
	va_end(ap);
	if (size)
		buf[n < size ? n : size - 1] = 0;
	return n;
}

/* decimal writes a number, and returns where it begins. */
const char *decimal(char buf[DECIMAL], int64_t v)
{
	uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v;
	char *p = buf + DECIMAL - 1;
	*p = 0;
	do
		*--p = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		*--p = '-';
	return p;
}

/* write_path writes a kernel file in one write, as they want it. */
int write_path(const char *path, const char *data, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int err = write(fd, data, n) == (ssize_t)n ? 0 : -errno;
	close(fd);
	return err;
}

ssize_t read_path(int dir, const char *path, char *buf, size_t size)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	size_t n = 0;
	while (n < size - 1) {
		ssize_t r = read(fd, buf + n, size - 1 - n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			break;
		n += (size_t)r;
	}
	close(fd);
	buf[n] = 0;
	return (ssize_t)n;
}

/*
 * write_record replaces <dir>/<id> of the keeper's directory at once: whoever
 * reads sees the old one or the whole new one, also after a kill -9. There is
 * no fsync: what a record describes does not survive a power cut either.
 */
int write_record(const char *dir, const char *id, const char *data, size_t n)
{
	char path[IDMAX + 16], tmp[IDMAX + 16];
	snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", id);
	snprintf(tmp, sizeof tmp, "%s%s.%s", dir, *dir ? "/" : "", id);
	int fd = openat(dirfd_, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	ssize_t w = write_all(fd, data, n);
	int err = w < 0 ? -errno : 0;
	close(fd);
	if (!err && renameat(dirfd_, tmp, dirfd_, path) < 0)
		err = -errno;
	if (err)
		unlinkat(dirfd_, tmp, 0);
	return err;
}

/* start_time is the 22nd field of /proc/<pid>/stat, 0 when there is none. */
uint64_t start_time(pid_t pid)
{
	char path[32], buf[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	if (read_path(AT_FDCWD, path, buf, sizeof buf) <= 0)
		return 0;
	/* The name before it, in parentheses, may itself hold anything. */
	char *p = strrchr(buf, ')');
	for (int i = 0; p && i < 20; i++)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

/*
 * open_cgroup opens the file by which a process that has one thread moves itself
 * to the group of a cgroup.procs file. On v1 it is the tasks file beside it: for
 * a thread the kernel need not hold up all that fork or exit meanwhile.
 */
int open_cgroup(struct span path)
{
	static const char procs[] = "/cgroup.procs";
	const size_t n = sizeof procs - 1;
	char buf[PATH_MAX];
	if (path.n == 0 || path.n >= sizeof buf)
		return -ENAMETOOLONG;
	memcpy(buf, path.p, path.n);
	buf[path.n] = 0;
	if (path.n > n && strcmp(buf + path.n - n, procs) == 0) {
		strcpy(buf + path.n - n, "/tasks");
		int fd = open(buf, O_WRONLY | O_CLOEXEC);
		if (fd >= 0 || errno != ENOENT)
			return fd < 0 ? -errno : fd;
		strcpy(buf + path.n - n, procs); /* v2 has none */
	}
	int fd = open(buf, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* join_cgroup moves this process, which has one thread. */
int join_cgroup(struct span path)
{
	int fd = open_cgroup(path);
	if (fd < 0)
		return fd;
	int err = write(fd, "0", 1) == 1 ? 0 : -errno;
	close(fd);
	return err;
}

/*
 * end_with has the kernel kill this process when its parent ends, which may have
 * happened already. What a launcher does after the death of its keeper nobody
 * would find: the sweep of the pod may be over by then.
 */
void end_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (getppid() != parent)
		_exit(1);
}

struct pids {
	pid_t *p;
	size_t n, max;
};

static int pids_has(const struct pids *l, pid_t pid)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->p[i] == pid)
			return 1;
	return 0;
}

static int pids_add(struct pids *l, pid_t pid)
{
	if (l->n == l->max) {
		size_t max = l->max ? l->max * 2 : 64;
		pid_t *p = realloc(l->p, max * sizeof *p);
		if (!p)
			return 0;
		l->p = p;
		l->max = max;
	}
	l->p[l->n++] = pid;
	return 1;
}

/* children_of adds the children of all threads of a process. */
static void children_of(pid_t pid, struct pids *l)
{
	char path[64], buf[4096];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *d = opendir(path);
	struct dirent *e;
	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", pid, e->d_name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		ssize_t n;
		pid_t num = 0;
		/* A number may be cut by the end of the buffer. */
		while ((n = read(fd, buf, sizeof buf)) > 0)
			for (ssize_t i = 0; i < n; i++) {
				if (buf[i] >= '0' && buf[i] <= '9') {
					num = num * 10 + (buf[i] - '0');
				} else if (num) {
					if (!pids_has(l, num))
						pids_add(l, num);
					num = 0;
				}
			}
		close(fd);
	}
	if (d)
		closedir(d);
}

/* stop_tree stops what descends from a process and from those in the list, until no new one is found, and adds it. */
static void stop_tree(pid_t root, struct pids *l)
{
	for (int round = 0; round < 64; round++) {
		size_t before = l->n;
		if (root)
			children_of(root, l);
		for (size_t i = 0; i < l->n; i++)
			children_of(l->p[i], l);
		for (size_t i = before; i < l->n; i++)
			kill(l->p[i], SIGSTOP);
		if (l->n == before && round > 0)
			break;
	}
}

static int kill_pids(struct pids *l)
{
	for (size_t i = 0; i < l->n; i++)
		kill(l->p[i], SIGKILL);
	int n = (int)l->n;
	free(l->p);
	return n;
}

/*
 * kill_tree kills what descends from a process, and that itself when self is
 * set. All are stopped before the first is killed, and looked for again until
 * no new one is found: a process that is stopped cannot fork away from us, and
 * one whose parent was killed would not be found under it.
 */
int kill_tree(pid_t root, int self)
{
	struct pids l = { 0 };
	if (self) {
		kill(root, SIGSTOP);
		pids_add(&l, root);
	}
	stop_tree(root, &l);
	return kill_pids(&l);
}

/*
 * kill_children kills those of the keeper's children that are asked for, and says
 * how many there were, zombies among them.
 */
int kill_children(int (*which)(pid_t))
{
	struct pids l = { 0 };
	int n = 0;
	children_of(getpid(), &l);
	for (size_t i = 0; i < l.n; i++)
		if (which(l.p[i])) {
			kill(l.p[i], SIGKILL);
			n++;
		}
	free(l.p);
	return n;
}

/* Fields of /proc/<pid>/stat, counted from the process's state. */
enum { STAT_PARENT = 1, STAT_SESSION = 3 };

/* stat_field is 0 when there is no such process. */
static pid_t stat_field(pid_t pid, int field)
{
	char path[32], buf[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	if (read_path(AT_FDCWD, path, buf, sizeof buf) <= 0)
		return 0;
	char *p = strrchr(buf, ')');
	for (int i = 0; p && i <= field; i++)
		p = strchr(p + 1, ' ');
	return p ? (pid_t)strtol(p + 1, NULL, 10) : 0;
}

static pid_t session_of(pid_t pid)
{
	return stat_field(pid, STAT_SESSION);
}

/* stop_sessions adds the processes below the keeper that are in one of the sessions. */
static void stop_sessions(pid_t keeper, const struct pids *leaders, struct pids *l)
{
	struct pids all = { 0 };
	children_of(keeper, &all);
	for (size_t i = 0; i < all.n; i++) {
		children_of(all.p[i], &all);
		if (!pids_has(l, all.p[i]) && pids_has(leaders, session_of(all.p[i])) && pids_add(l, all.p[i]))
			kill(all.p[i], SIGSTOP);
	}
	free(all.p);
}

/* is_child says whether a process is a child of this one. */
int is_child(pid_t pid)
{
	return stat_field(pid, STAT_PARENT) == getpid();
}

/*
 * stop_child adds a process if it is a child of one of two: the number of one that
 * was reaped may be anybody's by now.
 */
static void stop_child(pid_t pid, pid_t keeper, pid_t entry, struct pids *l)
{
	pid_t parent = pid ? stat_field(pid, STAT_PARENT) : 0;
	if (parent && (parent == keeper || parent == entry) && pids_add(l, pid))
		kill(pid, SIGSTOP);
}

/*
 * kill_exec kills what an entry process has started and, wherever in the pod it
 * is by now, what is left of the sessions of that and of the program's. Each may
 * be 0. The kernel gives out the number of a session's leader again only when the
 * session is empty: if somebody else has it, there is nothing left. What has left
 * both its parent and the session is the container's own.
 */
int kill_exec(pid_t keeper, pid_t entry, pid_t settler, pid_t program)
{
	struct pids l = { 0 }, leaders = { 0 };
	pid_t own = getsid(0);
	size_t before;
	stop_child(settler, keeper, entry, &l);
	stop_child(program, keeper, entry, &l);
	do {
		before = l.n;
		stop_tree(entry, &l);
		if (program && !pids_has(&l, program) && !pids_has(&leaders, program) && session_of(program) == 0)
			pids_add(&leaders, program);
		for (size_t i = 0; i < l.n; i++) {
			pid_t s = session_of(l.p[i]);
			if (s && s != own && !pids_has(&leaders, s))
				pids_add(&leaders, s);
		}
		if (leaders.n)
			stop_sessions(keeper, &leaders, &l);
	} while (l.n != before);
	free(leaders.p);
	return kill_pids(&l);
}

/* child_reset gives a forked child the signals a program expects. */
void child_reset(void)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * place_fds brings descriptors to the numbers from 0 to n - 1, and closes all others. Where one is missing (-1) the
 * number is closed too, but for stdin, stdout and stderr, which stay what they are.
 */
void place_fds(int *fds, int n)
{
	for (int i = 0; i < n; i++)
		if (fds[i] >= 0 && fds[i] < n)
			fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64); /* out of the way */
	for (int i = 0; i < n; i++)
		if (fds[i] >= 0)
			dup3(fds[i], i, i <= STDERR_FILENO ? 0 : O_CLOEXEC);
		else if (i > STDERR_FILENO)
			close(i);
	close_range((unsigned)n, ~0u, 0);
}

/*
 * fork_paired forks a process with a socket between both. It returns 1 in the child and 0 in the parent, with the own
 * end in *sock, or a negative errno.
 */
int fork_paired(pid_t *pid, int *sock)
{
	int p[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p) < 0)
		return -errno;
	*pid = fork();
	if (*pid == 0) {
		*sock = p[1];
		return 1;
	}
	int err = *pid < 0 ? -errno : 0;
	close(p[1]);
	if (err) {
		*pid = 0;
		close(p[0]);
		return err;
	}
	*sock = p[0];
	return 0;
}
