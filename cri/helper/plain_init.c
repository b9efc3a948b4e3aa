/*
 * The first process of an ordinary container, until it executes the program. It is root on the host at first, and
 * alone in its PID namespace. What it does is in the order in which libcontainer does it, where the order can be seen.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plain.h"
#include "program.h"
#include "proto.h"
#include "sys.h"
#include "wire.h"

static int join_groups(struct plain *s)
{
	size_t at = 0;
	struct span v;
	while (!s->born && tag_next(s->m, &at, TAG_CGROUP, &v)) {
		int e = join_cgroup(v);
		if (e < 0)
			return program_bad(s->p, "join %.*s: %s", (int)v.n, v.p, strerror(-e));
	}
	/*
	 * On all processors, those among them that the groups may get later: the kernel remembers what was asked for
	 * beside what the groups allow, and what the agent runs on is not the container's.
	 */
	static unsigned char all[8192];
	memset(all, 0xff, sizeof all);
	syscall(SYS_sched_setaffinity, 0, sizeof all, all);
	return 0;
}

static int join_namespaces(struct plain *s)
{
	size_t at = 0;
	struct span v;
	while (tag_next(s->m, &at, TAG_NS, &v)) {
		uint32_t kind;
		if (v.n < sizeof kind)
			return program_bad(s->p, "namespace is not valid");
		memcpy(&kind, v.p, sizeof kind);
		if (kind == CLONE_NEWCGROUP && v.n == sizeof kind) {
			/* Its root is the group that this process is in by now. */
			if (unshare(CLONE_NEWCGROUP) < 0)
				return program_bad(s->p, "make namespace of groups: %s", strerror(errno));
			continue;
		}
		if (v.n < sizeof kind + 2)
			return program_bad(s->p, "namespace is not valid");
		if (kind != CLONE_NEWNET && kind != CLONE_NEWIPC && kind != CLONE_NEWUTS)
			return program_bad(s->p, "namespace is not known");
		char *path = span_dup((struct span){ v.p + sizeof kind, v.n - (uint32_t)sizeof kind });
		int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
		if (fd < 0 || setns(fd, (int)kind) < 0)
			return program_bad(s->p, "join namespace %s: %s", path ? path : "", strerror(errno));
		close(fd);
		free(path);
	}
	return 0;
}

static int set_oom(struct plain *s)
{
	char buf[DECIMAL];
	if (!tag_has(s->m, TAG_OOMADJ))
		return 0;
	const char *num = decimal(buf, (int32_t)tag_u32(s->m, TAG_OOMADJ));
	int e = write_path("/proc/self/oom_score_adj", num, strlen(num));
	return e < 0 ? program_bad(s->p, "set oom_score_adj: %s", strerror(-e)) : 0;
}

/* join_keyring makes a session keyring that the container's users may search. */
static int join_keyring(struct plain *s)
{
	char name[IDMAX + 8], text[256];
	unsigned perm;
	join_text(name, sizeof name, "_ses.", s->p->id ? s->p->id : "", NULL);
	long id = syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name);
	if (id < 0 && errno == ENOSYS)
		return 0;
	long n = id < 0 ? -1 : syscall(SYS_keyctl, KEYCTL_DESCRIBE, id, text, sizeof text - 1);
	if (n < 0 || n >= (long)sizeof text)
		return program_bad(s->p, "join session keyring: %s", strerror(errno));
	text[n] = 0;
	if (sscanf(text, "%*[^;];%*d;%*d;%x;", &perm) != 1 ||
	    syscall(SYS_keyctl, KEYCTL_SETPERM, id, perm | 0x80000 /* its user may search it */) < 0)
		return program_bad(s->p, "change session keyring: %s", strerror(errno));
	s->p->keyring = 1;
	return 0;
}

/*
 * tell has the keeper know this process before the program can run. From here on it need not end with the starter: the
 * keeper ends it if that has not said that the container is started.
 */
static int tell(struct plain *s)
{
	char said[32], num[DECIMAL];
	size_t n = join_text(said, sizeof said, "P", decimal(num, s->told->pid), NULL);
	if (send(s->sock, said, n, MSG_NOSIGNAL) < 0)
		return program_bad(s->p, "tell keeper: %s", strerror(errno));
	prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	return 0;
}

/*
 * execute gives up what the program is not to have, and executes it. It returns when that fails.
 *
 * The filter comes last: under it a call may do nothing and say that all is well, and to give up a user or a capability
 * must not be such a call. To load it takes no_new_privs or CAP_SYS_ADMIN, which stays for that. The program does not
 * get it: execve(2) makes its capabilities of the bounding, inheritable and ambient sets, whatever is permitted before.
 */
static void execute(struct plain *s)
{
	struct program *p = s->p;
	uint32_t flags = 0;
	struct sock_fprog load = program_filter(p, &flags);
	if (load.len && !p->nnp)
		p->hold = 1ull << CAP_SYS_ADMIN;
	if (program_prepare(p) < 0)
		return;
	if (p->tty && ioctl(0, TIOCSCTTY, 0) < 0) {
		program_bad(p, "set controlling terminal: %s", strerror(errno));
		return;
	}
	if (program_confine(p) < 0)
		return;
	if (load.len && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &load) < 0) {
		program_bad(p, "load seccomp filter: %s", strerror(errno));
		return;
	}
	s->told->executes = 1;
	execve(p->path, p->argv, p->envp);
	s->told->executes = 0;
	program_bad(p, "exec %s: %s", p->path, strerror(errno));
}

void plain_init(struct plain *s)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	child_reset();
	setsid();
	if (join_groups(s) == 0 && set_oom(s) == 0 && join_namespaces(s) == 0 && join_keyring(s) == 0 &&
	    plain_mounts(s) == 0 && plain_enter(s) == 0 &&
	    program_home(s->p) == 0 /* by what no path hides */ && plain_protect(s) == 0 &&
	    program_rlimits(s->p, s->m) == 0 && tell(s) == 0)
		execute(s);
	join_text(s->told->why, sizeof s->told->why, s->p->err, NULL);
	_exit(1);
}
