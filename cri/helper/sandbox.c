/*
 * What a keeper does before it listens: it records itself, joins its cgroups,
 * and makes or joins the namespaces of its pod.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "podinit.h"
#include "proto.h"
#include "sandbox.h"
#include "sys.h"
#include "wire.h"

pid_t pid1;
const char *launchcg = "";
char **main_argv;

/* set_title writes over the arguments, which is what ps shows. */
void set_title(const char *title)
{
	char *start = main_argv[0], *end = start;
	for (char **a = main_argv; *a && *a == end; a++)
		end = *a + strlen(*a) + 1;
	size_t room = (size_t)(end - start);
	if (room == 0)
		return;
	memset(start, 0, room);
	strncpy(start, title, room - 1);
}

static int fail(char *err, size_t size, int e, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(err, size, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < size)
		snprintf(err + n, size - (size_t)n, ": %s", strerror(e));
	return -1;
}

/* record_self writes keeper.pid before anything else is done. */
static int record_self(char *err, size_t size)
{
	char boot[64], line[160];
	if (read_path(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof boot) <= 0)
		strcpy(boot, "-");
	boot[strcspn(boot, "\n")] = 0;
	int n = snprintf(line, sizeof line, "%d %llu %s\n", getpid(),
			 (unsigned long long)start_time(getpid()), boot);
	int e = write_record("", "keeper.pid", line, (size_t)n);
	if (e < 0)
		return fail(err, size, -e, "write keeper.pid");
	if (mkdirat(dirfd_, "c", 0700) < 0 && errno != EEXIST)
		return fail(err, size, errno, "make directory c");
	if (mkdirat(dirfd_, "exit", 0700) < 0 && errno != EEXIST)
		return fail(err, size, errno, "make directory exit");
	return 0;
}

static int join_cgroups(const struct msg *m, char *err, size_t size)
{
	size_t at = 0, n = 0;
	struct span v;
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		int e = join_cgroup(v);
		if (e < 0)
			return fail(err, size, -e, "join %.*s", (int)v.n, v.p);
	}
	for (at = 0; tag_next(m, &at, TAG_LAUNCHCG, &v);)
		n += v.n + 1;
	if (n == 0)
		return 0;
	char *p = calloc(1, n + 1);
	if (!p)
		return fail(err, size, ENOMEM, "read configuration");
	launchcg = p;
	for (at = 0; tag_next(m, &at, TAG_LAUNCHCG, &v); p += v.n + 1)
		memcpy(p, v.p, v.n);
	return 0;
}

static int join_net(const struct msg *m, char *err, size_t size)
{
	char *path = span_dup(tag_str(m, TAG_NETNS));
	if (!path)
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int e = fd < 0 || setns(fd, CLONE_NEWNET) < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	if (e)
		fail(err, size, e, "join network namespace %s", path);
	free(path);
	return e ? -1 : 0;
}

/*
 * write_sysctl writes as the host's root, and where that may not as the pod's:
 * the kernel looks at who owns an IPC namespace, capabilities or not.
 */
static int write_sysctl(const struct msg *m, const char *path, const char *data, size_t n)
{
	int e = write_path(path, data, n);
	if ((e != -EACCES && e != -EPERM) || !tag_has(m, TAG_ROOTUID))
		return e;
	if (syscall(SYS_setresuid, -1, tag_u32(m, TAG_ROOTUID), -1) < 0)
		return e;
	e = write_path(path, data, n);
	if (syscall(SYS_setresuid, -1, 0, -1) < 0)
		_exit(1);
	return e;
}

static int set_sysctls(const struct msg *m, char *err, size_t size)
{
	size_t at = 0;
	struct span v;
	char path[PATH_MAX];
	while (tag_next(m, &at, TAG_SYSCTL, &v)) {
		const char *eq = memchr(v.p, '=', v.n);
		size_t n = eq ? (size_t)(eq - v.p) : 0;
		if (n == 0 || n > sizeof path - 16)
			return fail(err, size, EINVAL, "set sysctl");
		snprintf(path, sizeof path, "/proc/sys/%.*s", (int)n, v.p);
		int e = write_sysctl(m, path, eq + 1, v.n - n - 1);
		if (e < 0)
			return fail(err, size, -e, "set sysctl %s", path + strlen("/proc/sys/"));
	}
	return 0;
}

/* What the owner says: process 1 when all is there, or why it is not. */
struct owned {
	pid_t pid1;
	char err[200];
};

/*
 * owner is a child that makes the pod's namespaces from within its user
 * namespace, which then owns them, and lives until they have been joined.
 */
static void __attribute__((noreturn)) owner(int userns, int flags, struct birth *b, int sock)
{
	struct owned o = { 0 };
	char c;
	if (b) {
		close(b->said[0]);
		b->said[0] = -1;
	}
	if (setns(userns, CLONE_NEWUSER) < 0)
		fail(o.err, sizeof o.err, errno, "join user namespace");
	else if (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0)
		fail(o.err, sizeof o.err, errno, "become root of the pod");
	else if (flags && unshare(flags) < 0)
		fail(o.err, sizeof o.err, errno, "make namespaces");
	else if (b && (o.pid1 = birth(b, 1)) < 0)
		fail(o.err, sizeof o.err, errno, "make PID namespace");
	if (b)
		birth_over(b);
	write_all(sock, (char *)&o, sizeof o);
	while (read(sock, &c, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

/*
 * own_namespaces has the pod's namespaces made by its user namespace. The
 * keeper joins them and stays in the host's user namespace: it writes logs and
 * starts launchers, which need the host's root.
 */
static int own_namespaces(const char *path, int flags, struct birth *b, char *err, size_t size)
{
	struct owned o = { 0 };
	int p[2], e = 0;
	int userns = open(path, O_RDONLY | O_CLOEXEC);
	if (userns < 0)
		return fail(err, size, errno, "open user namespace %s", path);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
		return fail(err, size, errno, "make namespaces");
	pid_t child = fork();
	if (child == 0) {
		close(p[0]);
		owner(userns, flags, b, p[1]);
	}
	e = errno;
	close(p[1]);
	close(userns);
	if (child < 0) {
		close(p[0]);
		return fail(err, size, e, "make namespaces");
	}
	ssize_t n = recv(p[0], &o, sizeof o, MSG_WAITALL);
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	e = flags && (pidfd < 0 || setns(pidfd, flags) < 0) ? errno : 0;
	if (pidfd >= 0)
		close(pidfd);
	close(p[0]);
	waitpid(child, NULL, 0);
	pid1 = o.pid1 > 0 ? o.pid1 : 0;
	if (n != sizeof o || o.err[0]) {
		snprintf(err, size, "%s", n == sizeof o ? o.err : "make namespaces: the child died");
		return -1;
	}
	return e ? fail(err, size, e, "join namespaces of the pod") : 0;
}

static int make_namespaces(const struct msg *m, uint32_t ns, struct birth *b, char *err, size_t size)
{
	int flags = (ns & NS_IPC ? CLONE_NEWIPC : 0) | (ns & NS_UTS ? CLONE_NEWUTS : 0);
	char *userns = span_dup(tag_str(m, TAG_USERNS));
	if (userns) {
		int r = own_namespaces(userns, flags, b, err, size);
		free(userns);
		return r;
	}
	return flags && unshare(flags) < 0 ? fail(err, size, errno, "make namespaces") : 0;
}

/* settle makes of the namespaces what the pod wants them to be. */
static int settle(const struct msg *m, char *err, size_t size)
{
	struct span host = tag_str(m, TAG_HOSTNAME);
	if (host.n && sethostname(host.p, host.n) < 0)
		return fail(err, size, errno, "set hostname");
	return set_sysctls(m, err, size);
}

/* make_pod makes or joins all namespaces; b is that of process 1 of the pod, where it has one. */
static int make_pod(const struct msg *m, struct birth *b, char *err, size_t size)
{
	if (make_namespaces(m, tag_u32(m, TAG_NAMESPACES), b, err, size) < 0 || settle(m, err, size) < 0)
		return -1;
	if (!b)
		return 0;
	if (!pid1 && (pid1 = birth(b, 0)) < 0) {
		pid1 = 0;
		return fail(err, size, errno, "make PID namespace");
	}
	return birth_wait(b, err, size);
}

int sandbox_setup(const struct msg *m, char *err, size_t size)
{
	char num[16];
	struct birth b;

	if (record_self(err, size) < 0)
		return -1;
	if (tag_has(m, TAG_OOMADJ)) {
		int n = snprintf(num, sizeof num, "%d", (int32_t)tag_u32(m, TAG_OOMADJ));
		int e = write_path("/proc/self/oom_score_adj", num, (size_t)n);
		/* Lowering it needs CAP_SYS_RESOURCE, which not every root has. */
		if (e < 0 && e != -EACCES && e != -EPERM)
			return fail(err, size, -e, "set oom_score_adj");
	}
	if (join_cgroups(m, err, size) < 0 || join_net(m, err, size) < 0)
		return -1;
	if (!(tag_u32(m, TAG_NAMESPACES) & NS_PID))
		return make_pod(m, NULL, err, size);
	if (birth_prepare(&b, m, err, size) < 0)
		return -1;
	int r = make_pod(m, &b, err, size);
	birth_over(&b);
	return r;
}

/* sandbox_listen binds through /proc: the directory may be longer than an address. */
int sandbox_listen(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	unlinkat(dirfd_, "keeper.sock", 0);
	snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/keeper.sock", dirfd_);
	if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, SOMAXCONN) < 0) {
		int e = errno;
		close(fd);
		errno = e;
		return -1;
	}
	return fd;
}
