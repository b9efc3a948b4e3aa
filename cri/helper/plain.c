/*
 * The starter of an ordinary container: what a launcher of libcontainer is to others, in C and without a program of
 * its own. What is ordinary, the agent says (cri/plain): it sends all that the container is to have.
 *
 * The starter is a copy of the keeper, and has one child, which is the first of the container's PID namespace and
 * makes the container around itself (plain_init.c). Nobody else is in there, so nobody sees what it still has. It
 * tells the keeper of itself, and executes the program.
 *
 * Whatever fails before that, for whatever reason, is left to libcontainer: the starter becomes its launcher. What was
 * made has ended with the child by then, since all of it was in namespaces of the child's own. So nothing here has to
 * word an error that users see, and what is unusual need not be understood, but only be noticed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entry.h"
#include "groups.h"
#include "launch.h"
#include "plain.h"
#include "program.h"
#include "proto.h"
#include "sys.h"
#include "terminal.h"
#include "wire.h"

/* The descriptors it has, after 0, 1 and 2. */
enum { FD_SOCK = 3, FD_CONSOLE, FD_LAST };

/* leave_it has libcontainer start the container, in the place of this process. */
static void __attribute__((noreturn)) leave_it(const struct launch *l, const char *why)
{
	char text[600];
	int n = snprintf(text, sizeof text, "F%s", why);
	send(FD_SOCK, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, MSG_NOSIGNAL);
	launcher_become(l, FD_SOCK, l->fds[3] >= 0 ? FD_CONSOLE : -1);
}

/*
 * end_word says that the process the keeper was told of is no more, while its number cannot be anybody else's yet. Its
 * groups are empty when it is reaped.
 */
static void end_word(pid_t pid)
{
	siginfo_t si;
	while (waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT) < 0 && errno == EINTR)
		;
	send(FD_SOCK, "P0", 2, MSG_NOSIGNAL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

/* own_group opens the group of a container that is in no other, as on v2. */
static int own_group(const struct msg *m)
{
	size_t at = 0;
	struct span v, more;
	if (!tag_next(m, &at, TAG_CGROUP, &v) || tag_next(m, &at, TAG_CGROUP, &more))
		return -1;
	char *file = span_dup(v);
	int fd = file ? cgroup2_open(file) : -1;
	free(file);
	return fd;
}

/*
 * give_birth makes the child, and waits until that executes the program, or ends. On v2 it is born in its group, which
 * spares the kernel a wait for all CPUs that moving it would cost.
 */
static pid_t give_birth(struct plain *s)
{
	struct clone_args a = { .flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_VFORK | CLONE_PARENT_SETTID,
				.exit_signal = SIGCHLD, .parent_tid = (uint64_t)(uintptr_t)&s->told->pid };
	int group = own_group(s->m);
	if (group < 0)
		return (pid_t)syscall(SYS_clone, a.flags | SIGCHLD, 0, &s->told->pid, 0, 0);
	s->born = 1;
	a.flags |= CLONE_INTO_CGROUP;
	a.cgroup = (uint64_t)group;
	pid_t pid = (pid_t)syscall(SYS_clone3, &a, sizeof a);
	int e = errno;
	close(group);
	errno = e;
	return pid;
}

static void __attribute__((noreturn)) starter(const struct launch *l, int sock, pid_t keeper)
{
	int fds[FD_LAST] = { l->fds[0], l->fds[1], l->fds[2], sock, l->fds[3] };
	struct plain s = { .m = l->m, .sock = FD_SOCK, .console = -1, .rootfd = -1 };
	int console[2] = { -1, -1 };

	end_with(keeper);
	umask(022);
	for (int i = 0; i < 3; i++)
		if (l->fds[i] < 0)
			s.missing |= 1u << i;
	/* All else is the keeper's: its lock above all must not outlive it here. */
	place_fds(fds, FD_LAST);
	prctl(PR_SET_NAME, "berth-launch", 0, 0, 0);
	s.told = mmap(NULL, sizeof *s.told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	s.p = program_new(l->m);
	if (s.told == MAP_FAILED || !s.p)
		leave_it(l, strerror(errno));
	if (plain_parse(&s) < 0)
		leave_it(l, s.p->err);
	/* The keeper takes the first terminal that it gets: none of a child whose program is not executed. */
	if (l->fds[3] >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, console) < 0)
		leave_it(l, strerror(errno));
	s.console = console[1];
	pid_t pid = give_birth(&s);
	if (pid == 0)
		plain_init(&s);
	if (pid < 0)
		leave_it(l, strerror(errno));
	if (s.told->executes) {
		int master = s.console >= 0 ? terminal_take(console[0]) : -1;
		if (master >= 0)
			entry_terminal(FD_CONSOLE, master);
		send(FD_SOCK, "S", 1, MSG_NOSIGNAL);
		_exit(0); /* and the child is the keeper's */
	}
	end_word(pid);
	s.told->why[sizeof s.told->why - 1] = 0;
	leave_it(l, s.told->why[0] ? s.told->why : "it was killed");
}

/* plain_start starts a starter. */
int plain_start(const struct launch *l, pid_t *pid, int *sock)
{
	pid_t keeper = getpid();
	int err = fork_paired(pid, sock);
	if (err == 1)
		starter(l, *sock, keeper);
	return err;
}
