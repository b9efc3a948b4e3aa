/*
 * The birth of a program of exec. Its process is a copy of the settler, which by
 * then has all that the program is to have and nothing more, and is the first that
 * the container sees.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kin.h"
#include "program.h"
#include "sanitizer.h"
#include "wire.h"

/* How the program's process says that it cannot execute. A container may write there, and only fools itself. */
struct last {
	volatile int step, err;
};

enum { LAST_SESSION = 1, LAST_TERMINAL, LAST_FILTER, LAST_EXEC };

/*
 * program_new makes the one piece of memory that the program's process is to
 * have of the keeper's: its strings, its filter and a stack. What the page holds
 * that is shared with it is bounded, so nothing of it is believed.
 */
struct program *program_new(const struct msg *m)
{
	size_t fields = (m->n * 2 + sizeof(struct program) + 2 * 4096 - 1) & ~(size_t)4095;
	int borrowed = SANITIZED ? MAP_SHARED : MAP_PRIVATE; /* see settler_start */
	char *p = mmap(NULL, fields + PROGRAM_STACK, PROT_READ | PROT_WRITE, borrowed | MAP_ANONYMOUS, -1, 0);
	struct last *last = mmap(NULL, sizeof *last, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || last == MAP_FAILED)
		return NULL;
	struct program *prog = (struct program *)(void *)p;
	prog->last = last;
	prog->slave = -1;
	prog->stack = p + fields + PROGRAM_STACK;
	prog->room = (struct arena){ p + sizeof *prog, fields - sizeof *prog };
	return prog;
}

/* program_filter is what a program's filter is loaded from; of no length when it has none. */
struct sock_fprog program_filter(const struct program *p, uint32_t *flags)
{
	struct sock_fprog f = { 0 };
	if (p->nseccomp == 0)
		return f;
	memcpy(flags, p->seccomp, sizeof *flags);
	f.len = (unsigned short)((p->nseccomp - 8) / sizeof(struct sock_filter));
	f.filter = (struct sock_filter *)(uintptr_t)(p->seccomp + 8);
	return f;
}

/*
 * raw calls the kernel without the C library, whose data the program's process
 * does not have. It returns a negative errno.
 */
static inline __attribute__((always_inline)) long raw(long nr, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "+a"(nr) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return nr;
#elif defined(__aarch64__)
	register long x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
	register long x8 __asm__("x8") = nr;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x3), "r"(x8) : "memory");
	return x0;
#else
	long r = syscall(nr, a, b, c, d);
	return r < 0 ? -errno : r;
#endif
}

/*
 * program_execute is the program's process. The container sees it from its first
 * moment on, and may look into it and write to it: it has no power, no file and
 * no memory that the program is not to have.
 */
static void __attribute__((noreturn, noinline))
program_execute(struct program *p, const struct sock_fprog *load, long flags)
{
	const uint64_t none = 0;
	int step = LAST_SESSION;
	long r = raw(SYS_setsid, 0, 0, 0, 0);
	if (r >= 0 && p->tty) {
		step = LAST_TERMINAL;
		r = raw(SYS_ioctl, 0, TIOCSCTTY, 0, 0);
	}
	if (r >= 0 && load->len) {
		step = LAST_FILTER;
		r = raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)load, 0);
	}
	if (r >= 0) {
		step = LAST_EXEC;
		raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
		r = raw(SYS_execve, (long)p->path, (long)p->argv, (long)p->envp, 0);
	}
	p->last->err = (int)-r;
	p->last->step = step;
	for (;;)
		raw(SYS_exit_group, 1, 0, 0, 0);
}

/*
 * program_start settles what is left, and has the program's process born with
 * all of it. The process is a copy and not a vfork(2): the container could write
 * to memory that it shared. Its parent is the entry process. This one waits
 * until it has executed, which tells the entry process that it has.
 */
int program_start(struct program *p)
{
	uint32_t flags = 0;
	if (program_prepare(p) < 0)
		return -1;
	struct sock_fprog load = program_filter(p, &flags);
	/* Without no_new_privs a filter needs privilege, so it comes before the drop. */
	p->filtered = !p->nnp && load.len;
	if (p->filtered && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &load) < 0)
		return program_bad(p, "load seccomp filter: %s", strerror(errno));
	if (p->filtered)
		load.len = 0;
	if (program_confine(p) < 0)
		return -1;
	if (kin_given_up(p->e->kin))
		return program_bad(p, "it is given up");
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, 0,
				   &p->e->kin->program, 0, 0);
	if (pid == 0)
		program_execute(p, &load, flags);
	if (pid < 0)
		return program_bad(p, "fork: %s%s", strerror(errno),
				   p->filtered ? ", perhaps by the container's seccomp profile" : "");
	return 0;
}

/* program_failed says whether the program could not be executed, as its process tells. */
int program_failed(struct program *p)
{
	int step = p->last->step, err = p->last->err;
	switch (step) {
	case 0:
		return 0;
	case LAST_SESSION:
		program_bad(p, "setsid: %s", strerror(err));
		break;
	case LAST_TERMINAL:
		program_bad(p, "set controlling terminal: %s", strerror(err));
		break;
	case LAST_FILTER:
		program_bad(p, "load seccomp filter: %s", strerror(err));
		break;
	default:
		program_bad(p, "exec %s: %s", p->path, program_errno(err));
	}
	return 1;
}
