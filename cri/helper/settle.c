/*
 * The settler: what makes an exec's program ready outside of its container. It
 * is a child of the entry process, joins the container's cgroups and all its
 * namespaces but one, and takes on its user, privileges, labels and filter. Only
 * its children are in the container's PID namespace. So nobody in there sees a
 * process with the host's root, its mounts, its descriptors or more privilege
 * than the program has: whoever has CAP_SYS_PTRACE could open the /proc/N/root of
 * such a process, and be root on the host.
 *
 * Of the entry process it borrows the memory, as after vfork(2), with a stack of
 * its own. That spares a copy of the page tables, and what went wrong is known
 * there. Whatever it waits for, a file system of the container's that does not
 * answer for instance, nobody waits with it but the entry process, and both can
 * be killed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry.h"
#include "groups.h"
#include "kin.h"
#include "null.h"
#include "program.h"
#include "proto.h"
#include "sanitizer.h"
#include "sys.h"
#include "terminal.h"
#include "wire.h"

/* The descriptors it has, after 0, 1 and 2. */
enum { FD_SOCK = 3, FD_PIDFD, FD_PROC, FD_LAST };

static struct program *prog; /* what it settles */

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(prog->err, sizeof prog->err, fmt, ap);
	_exit(1);
}

/*
 * take_files brings the descriptors into their places and closes all others: those
 * of the keeper, among them directories of the host, must not be there when the
 * container is joined (CVE-2024-21626).
 */
static void take_files(struct program *p)
{
	const struct entry *e = p->e;
	int fds[FD_LAST] = { e->stdio[0], e->stdio[1], e->stdio[2], p->tty ? e->sock : -1, e->pidfd, -1 };
	/* The host's /proc is taken along only when there is something to write there. */
	if (p->apparmor || p->selinux) {
		fds[FD_PROC] = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (fds[FD_PROC] < 0)
			die("open /proc: %s", strerror(errno));
	}
	/* What is missing of 0 to 2 is replaced later. */
	place_fds(fds, FD_LAST);
	p->proc = FD_PROC; /* if it is there */
}

/* take_null gives the program the container's own /dev/null where nothing else was asked for. */
static void take_null(const struct entry *e)
{
	for (int i = 0; i < 3; i++)
		if (e->stdio[i] < 0 && null_take(i) < 0)
			die("open /dev/null: %s", strerror(errno));
}

static void join_cgroups(const struct msg *m)
{
	size_t at = 0;
	struct span v;
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		int e = join_cgroup(v);
		if (e < 0)
			die("join %.*s: %s", (int)v.n, v.p, strerror(-e));
	}
}

/* set_oom writes the score that was asked for, or else the container's. */
static void set_oom(const struct msg *m, pid_t container)
{
	char path[64], buf[DECIMAL];
	const char *num = buf;
	if (tag_has(m, TAG_OOMADJ)) {
		num = decimal(buf, (int32_t)tag_u32(m, TAG_OOMADJ));
	} else {
		join_text(path, sizeof path, "/proc/", decimal(buf, container), "/oom_score_adj", NULL);
		if (read_path(AT_FDCWD, path, buf, sizeof buf) <= 0)
			return;
	}
	int e = write_path("/proc/self/oom_score_adj", num, strlen(num));
	if (e < 0 && e != -EACCES && e != -EPERM)
		die("set oom_score_adj: %s", strerror(-e));
}

/* host_id is what an id of the container is on the host; 0 is not mapped. */
static uint32_t host_id(pid_t container, const char *map, uint32_t id)
{
	char path[64], text[4096];
	snprintf(path, sizeof path, "/proc/%d/%s", container, map);
	if (read_path(AT_FDCWD, path, text, sizeof text) <= 0)
		return 0;
	for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		unsigned inside, outside, n;
		if (sscanf(line, "%u %u %u", &inside, &outside, &n) == 3 && id >= inside && id - inside < n)
			return outside + (id - inside);
	}
	return 0;
}

/*
 * give_stdio makes the pipes the program's while they still can be: in the
 * container's user namespace nobody has power over what the host's root owns.
 */
static void give_stdio(const struct entry *e, uint32_t uid)
{
	struct stat st;
	uint32_t owner = host_id(e->pid, "uid_map", uid);
	for (int i = 0; i < 3 && owner; i++)
		if (fstat(i, &st) == 0 && S_ISFIFO(st.st_mode) && fchown(i, owner, (gid_t)-1) < 0)
			die("change owner of stdio: %s", strerror(errno));
}

/* join_namespaces joins all of them; the PID namespace is that of children to come. */
static void join_namespaces(const struct entry *e)
{
	int flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP;
	/* With a user namespace it comes first, since it may be another's. */
	if (e->user && setns(FD_PIDFD, CLONE_NEWPID) < 0)
		die("join PID namespace of the container: %s", strerror(errno));
	if (setns(FD_PIDFD, flags | (e->user ? CLONE_NEWUSER : CLONE_NEWPID)) < 0)
		die("join namespaces of the container: %s", strerror(errno));
	if (e->user && (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0))
		die("become root of the container: %s", strerror(errno));
}

static int settle(void *arg)
{
	struct program *p = arg;
	const struct entry *e = p->e;
	prog = p;
	if (kin_given_up(e->kin))
		die("it is given up");
	int joined = p->born || (e->groups && e->groups->dir < 0 && groups_join(e->groups));
	take_files(p);
	set_oom(e->m, e->pid);
	if (!joined)
		join_cgroups(e->m);
	if (program_rlimits(p, e->m) < 0)
		_exit(1);
	if (e->user && !p->tty)
		give_stdio(e, p->uid);
	join_namespaces(e);
	if (p->tty) {
		int master = terminal_open(p, e->m);
		if (master < 0)
			_exit(1);
		entry_terminal(FD_SOCK, master);
		close(master);
	} else {
		take_null(e);
	}
	_exit(program_start(p) < 0);
}

/*
 * clone_into clones a settler that is born in its cgroup, on v2, which spares the
 * kernel a wait for all CPUs that moving a process costs. The C library's clone
 * cannot, and nothing else gives the child a stack of its own. Without one it has
 * memory of its own.
 */
static pid_t clone_into(struct program *p, int cgroup)
{
	struct clone_args a = { .flags = CLONE_INTO_CGROUP | CLONE_VFORK | CLONE_PARENT_SETTID,
				.exit_signal = SIGCHLD,
				.parent_tid = (uint64_t)(uintptr_t)&p->e->kin->settler,
				.cgroup = (uint64_t)cgroup };
#if defined(__x86_64__)
	a.flags |= CLONE_VM;
	a.stack = (uint64_t)(uintptr_t)(p->stack - PROGRAM_STACK);
	a.stack_size = PROGRAM_STACK;
	register long pid __asm__("rax") = SYS_clone3;
	register struct program *arg __asm__("r12") = p;
	register int (*fn)(void *) __asm__("r13") = settle;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r12, %%rdi\n\t"
			 "call *%%r13\n\t"
			 "ud2\n"
			 "1:"
			 : "+r"(pid)
			 : "D"(&a), "S"(sizeof a), "r"(arg), "r"(fn)
			 : "rcx", "r11", "memory", "cc");
#elif defined(__aarch64__)
	a.flags |= CLONE_VM;
	a.stack = (uint64_t)(uintptr_t)(p->stack - PROGRAM_STACK);
	a.stack_size = PROGRAM_STACK;
	register long pid __asm__("x0") = (long)&a;
	register long size __asm__("x1") = sizeof a;
	register long nr __asm__("x8") = SYS_clone3;
	register struct program *arg __asm__("x19") = p;
	register int (*fn)(void *) __asm__("x20") = settle;
	__asm__ volatile("svc #0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x0, x19\n\t"
			 "blr x20\n\t"
			 "brk #1\n"
			 "1:"
			 : "+r"(pid)
			 : "r"(size), "r"(nr), "r"(arg), "r"(fn)
			 : "memory", "cc");
#else
	long pid = syscall(SYS_clone3, &a, sizeof a);
	if (pid == 0)
		settle(p);
	if (pid < 0)
		return -1;
#endif
	if (pid < 0) {
		errno = (int)-pid;
		return -1;
	}
	return (pid_t)pid;
}

/*
 * settler_start starts it and returns when it has ended, or has been told that
 * the program is executed.
 */
pid_t settler_start(struct program *p)
{
	int cgroup = p->e->groups ? p->e->groups->dir : -1;
	if (SANITIZED) {
		/*
		 * AddressSanitizer takes a stack that it has not seen for a mistake. What is to be
		 * known of the settler is shared.
		 */
		pid_t pid = (pid_t)syscall(SYS_clone, CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, 0,
					   &p->e->kin->settler, 0, 0);
		if (pid == 0)
			settle(p);
		return pid;
	}
	if (cgroup >= 0) {
		p->born = 1;
		pid_t pid = clone_into(p, cgroup);
		/*
		 * A container that manages cgroups of its own has left the one it was given, and
		 * that one then takes no process.
		 */
		if (pid < 0 && errno == EBUSY && (cgroup = cgroup2_of(p->e->pid)) >= 0) {
			pid = clone_into(p, cgroup);
			close(cgroup);
		}
		/* Else it was removed, and may have been made again. */
		if (pid >= 0 || (errno != ENOENT && errno != ENODEV))
			return pid;
		p->born = 0;
	}
	return clone(settle, p->stack, CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, p, &p->e->kin->settler);
}
