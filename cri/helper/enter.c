/*
 * The entry process: the parent of an exec's program. It is no part of the
 * container, and is not seen there: another process, the settler (settle.c),
 * joins the container and has the program born in it. Then it holds nothing but
 * a socket to the keeper, on which it tells the program's end, or one to the
 * agent (capture.c), and has no capability.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entry.h"
#include "kin.h"
#include "loop.h"
#include "program.h"
#include "sandbox.h"
#include "sanitizer.h"
#include "sys.h"
#include "wire.h"

/* The descriptors an entry process keeps, after 0, 1 and 2. */
enum { FD_SOCK = ENTRY_SOCK, FD_CONN = ENTRY_CONN, FD_OUT = ENTRY_OUT, FD_ERR, FD_LAST };

#define STACKMAX (8 * 1024 * 1024) /* what the main stack is mapped in, at most */

uintptr_t heap_start;
static int direct; /* the agent is told, not the keeper */

static void fail(int to, const char *fmt, va_list ap)
{
	char text[600];
	text[0] = 'E';
	vsnprintf(text + 1, sizeof text - 1, fmt, ap);
	if (direct)
		reply_error(to, 0, "%s", text + 1);
	else
		send(to, text, strlen(text), MSG_NOSIGNAL);
	_exit(1);
}

/* entry_die is entry_fail before entry_settle. */
void entry_die(struct entry *e, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fail(direct ? e->conn : e->sock, fmt, ap);
	_exit(1);
}

void entry_fail(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fail(direct ? FD_CONN : FD_SOCK, fmt, ap);
	_exit(1);
}

/* entry_settle brings the descriptors into their places and closes all others, which are the keeper's. */
void entry_settle(struct entry *e)
{
	int fds[FD_LAST] = { e->stdio[0], e->stdio[1], e->stdio[2], e->sock, e->conn, e->out[0], e->out[1] };
	/* What is missing of 0 to 2 is the keeper's, which is /dev/null. */
	place_fds(fds, FD_LAST);
}

/* entry_terminal sends the keeper the master of the program's terminal. */
void entry_terminal(int sock, int master)
{
	char t = 'T';
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof master)];
	} ctl;
	memset(&ctl, 0, sizeof ctl);
	struct iovec v = { &t, 1 };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof master);
	memcpy(CMSG_DATA(c), &master, sizeof master);
	sendmsg(sock, &h, MSG_NOSIGNAL);
}

/* entry_started tells the keeper of the program. */
void entry_started(pid_t pid)
{
	char s[1 + sizeof pid] = { 'S' };
	memcpy(s + 1, &pid, sizeof pid);
	if (send(FD_SOCK, s, sizeof s, MSG_NOSIGNAL) < 0)
		entry_fail("tell of the start: %s", strerror(errno));
}

/* entry_ended tells the keeper of the program's end. */
void entry_ended(int status)
{
	char x[1 + sizeof(int)] = { 'X' };
	memcpy(x + 1, &status, sizeof status);
	send(FD_SOCK, x, sizeof x, MSG_NOSIGNAL);
}

/* keep_none gives up all capabilities: what is left to do is to wait. */
static void keep_none(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };
	syscall(SYS_capset, &h, none);
}

/* entry_undo ends what was started for an exec that is given up. The keeper may not have seen all of it. */
void entry_undo(const struct entry *e)
{
	kill_exec(e->keeper, getpid(), 0, e->kin->program);
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
	e->kin->program = 0;
}

/* entry_watch reaps until the program, and all it left behind, has ended. */
void entry_watch(struct entry *e)
{
	int status;
	close_range(0, FD_SOCK - 1, 0);
	close_range(FD_SOCK + 1, ~0u, 0);
	keep_none();
	for (;;) {
		pid_t pid = waitpid(-1, &status, 0);
		if (pid == e->kin->program) {
			e->kin->program = 0;
			entry_ended(status);
		}
		if (pid < 0 && errno == ECHILD)
			_exit(0);
	}
}

/*
 * hide_memory keeps the keeper's memory, which has other containers' output and
 * environments in it, from processes that are forked from here: the container may
 * look into the program's before it executes. The C library keeps errno on the
 * heap, which hence is there, but empty.
 */
static void hide_memory(struct entry *e)
{
	if (SANITIZED) /* what sanitizers put into each function needs it */
		return;
	const struct msg *m = e->m;
	const uintptr_t page = getauxval(AT_PAGESZ);
	const char *file = (const char *)getauxval(AT_EXECFN); /* the last thing on the stack */
	uintptr_t top = ((uintptr_t)file + strlen(file) + 1 + page - 1) & ~(page - 1);
	uintptr_t heap = ((uintptr_t)sbrk(0) + page - 1) & ~(page - 1);
	extern char etext[], end[]; /* the linker's: constants, data and what begins as zeros are between them */
	uintptr_t data = ((uintptr_t)etext + page - 1) & ~(page - 1), bss = ((uintptr_t)end + page - 1) & ~(page - 1);
#if !defined(__x86_64__) && !defined(__aarch64__)
	data = bss; /* the program's process needs it: see raw */
#endif
	/* Of the stack only a part of what it may become is mapped. */
	if ((bss > data && madvise((void *)data, bss - data, MADV_DONTFORK) < 0) ||
	    (heap > heap_start && madvise((void *)heap_start, heap - heap_start, MADV_DONTFORK) < 0) ||
	    (madvise((void *)(top - STACKMAX), STACKMAX, MADV_DONTFORK) < 0 && errno != ENOMEM) ||
	    madvise(scratch_in(), 2 * SCRATCH, MADV_DONTFORK) < 0 || kin_hide() < 0 ||
	    (m->map && madvise(m->map, m->n, MADV_DONTFORK) < 0))
		entry_die(e, "hide memory: %s", strerror(errno));
}

/* entry_begin is what an entry process does first. It is not to be there without the keeper. */
void entry_begin(struct entry *e)
{
	prctl(PR_SET_NAME, "berth-exec", 0, 0, 0);
	set_title("berth-exec");
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != e->keeper)
		_exit(1);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		entry_die(e, "become a subreaper: %s", strerror(errno));
}

/* start has the program started. */
static void start(struct entry *e)
{
	struct kin *kin = e->kin;
	int status = 0;
	struct program *p = program_new(e->m);
	if (!p)
		entry_die(e, "start: %s", strerror(errno));
	p->e = e;
	if (program_parse(p, e->m) < 0)
		entry_die(e, "%s", p->err);
	hide_memory(e);
	kin->settler = 0; /* the page is there then: nothing keeps the kernel from writing to it */
	pid_t settler = settler_start(p);
	if (settler < 0)
		entry_die(e, "fork: %s", strerror(errno));
	entry_settle(e);
	while (waitpid(settler, &status, 0) < 0 && errno == EINTR)
		;
	kin->settler = 0;
	int given_up = kin_given_up(kin);
	if (status == 0 && !given_up && !program_failed(p))
		return;
	if (given_up || WIFSIGNALED(status)) {
		entry_undo(e);
	} else if (kin->program) {
		kill(kin->program, SIGKILL);
		waitpid(kin->program, NULL, 0);
		kin->program = 0;
	}
	if (given_up)
		entry_fail("it is given up");
	if (p->err[0])
		entry_fail("%s", p->err);
	if (WIFSIGNALED(status))
		entry_fail("it was ended by signal %d on its way into the container%s", WTERMSIG(status),
			   p->filtered && WTERMSIG(status) == SIGSYS ? ", by its seccomp profile" : "");
	entry_fail("it ended with status %d on its way into the container", WEXITSTATUS(status));
}

void enter(struct entry *e)
{
	direct = e->conn >= 0;
	entry_begin(e);
	if (direct)
		capture_pipes(e);
	start(e);
	keep_none();
	if (direct)
		capture(e);
	entry_started(e->kin->program);
	entry_watch(e);
}
