/*
 * Launchers: the "start" life of this same binary, which starts one container
 * and exits. What to start, and the stdio for it, come over the socket on which
 * it reports. A keeper forks its first launcher before it is asked for one: a
 * container will follow soon, and until then the Go runtime has started.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"
#include "sandbox.h"
#include "sys.h"
#include "wire.h"

#define SPARE_NS 1000000000 /* how long one waits: it has some megabytes */

/* How long the kernel stays ready to move processes between cgroups. */
#define WARM_NS 20000000

static pid_t spare;
static int spare_sock = -1;
static int64_t spare_since;

/* execute begins the life of one that has nothing open but 0 to 2 and what begins at 3. */
static void __attribute__((noreturn)) execute(char **argv, int join)
{
	/* A launcher lives for milliseconds: collecting garbage would only cost. */
	char *envp[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOGC=off", "GOMAXPROCS=2",
			 NULL };
	for (const char *p = launchcg; join && *p; p += strlen(p) + 1)
		join_cgroup((struct span){ p, (uint32_t)strlen(p) });
	umask(022);
	child_reset();
	execve("/proc/self/exe", argv, envp);
	dprintf(3, "Eexecute launcher: %s", strerror(errno));
	_exit(1);
}

static void __attribute__((noreturn)) launcher(int sock, int join, pid_t keeper)
{
	char *argv[] = { "berth-helper", "start", NULL };
	end_with(keeper);
	if (sock == 3)
		fcntl(sock, F_SETFD, 0);
	else
		dup2(sock, 3);
	close_range(4, ~0u, 0);
	execute(argv, join);
}

/*
 * launcher_become makes this process, which has its stdio already, the launcher of a container. It has its order in its
 * arguments. Its socket is 3, and its console, if there is one, 4.
 */
void launcher_become(const struct launch *l, int sock, int console)
{
	char tty[] = "c", *argv[] = { "berth-helper", "start", (char *)l->id, l->bundle, l->state, tty, NULL };
	if (console < 0)
		tty[0] = 0;
	else
		fcntl(console, F_SETFD, 0);
	fcntl(sock, F_SETFD, 0);
	close_range(console < 0 ? 4 : 5, ~0u, 0);
	execute(argv, 1);
}

static int fork_launcher(pid_t *pid, int *sock, int join)
{
	pid_t keeper = getpid();
	int err = fork_paired(pid, sock);
	if (err == 1)
		launcher(*sock, join, keeper);
	return err;
}

/*
 * spare_start forks the first launcher. The keeper is still in the agent's
 * cgroup, where that can stay until spare_move: on v1 the first move in a while
 * takes as long as all the rest of a start.
 */
void spare_start(void)
{
	if (fork_launcher(&spare, &spare_sock, 0) == 0)
		spare_since = mono_ns();
}

/* spare_move has a process of its own move it, since that may take a while. */
void spare_move(void)
{
	char pid[16];
	if (!spare || !*launchcg || fork() != 0)
		return;
	int n = snprintf(pid, sizeof pid, "%d", (int)spare);
	for (const char *p = launchcg; *p; p += strlen(p) + 1)
		write_path(p, pid, (size_t)n);
	_exit(0);
}

/* spare_end lets an unused launcher go; it exits when its socket is closed. */
static void spare_end(void)
{
	if (spare_sock >= 0)
		close(spare_sock);
	spare_sock = -1;
	spare = 0;
}

/* spare_check says whether there still is one to be looked after. */
int spare_check(void)
{
	if (spare && mono_ns() - spare_since >= SPARE_NS)
		spare_end();
	return spare != 0;
}

int spare_is(pid_t pid)
{
	return pid == spare;
}

void spare_reaped(pid_t pid)
{
	if (pid == spare)
		spare_end();
}

/* hand_over sends a launcher its order: a letter for each file, and strings. */
static int hand_over(int sock, const struct launch *l)
{
	static const char letters[] = "ioec";
	char *buf;
	int fds[4], n = 0, err = 0;
	char files[5] = "";
	for (int i = 0; i < 4; i++)
		if (l->fds[i] >= 0) {
			files[n] = letters[i];
			fds[n++] = l->fds[i];
		}
	int len = asprintf(&buf, "%s%c%s%c%s%c%s", files, 0, l->id, 0, l->bundle, 0, l->state);
	if (len < 0)
		return -ENOMEM;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof fds)];
	} ctl;
	struct iovec v = { buf, (size_t)len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1 };
	memset(&ctl, 0, sizeof ctl);
	h.msg_control = &ctl;
	h.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
	if (sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		err = -errno;
	free(buf);
	return err;
}

/*
 * warm_cgroups moves a process that does nothing else. The first move in a
 * while waits until all CPUs have passed a certain point, some milliseconds,
 * and one that follows soon does not. So it is done while the launcher is on
 * its way to the move of the container.
 */
static void warm_cgroups(void)
{
	if (!*launchcg || mono_ns() - spare_since < WARM_NS)
		return;
	if (fork() == 0) {
		join_cgroup((struct span){ launchcg, (uint32_t)strlen(launchcg) });
		_exit(0);
	}
}

/* launcher_start gives the order to the spare launcher or to a new one. */
int launcher_start(const struct launch *l, pid_t *pid, int *sock)
{
	if (spare && hand_over(spare_sock, l) == 0) {
		warm_cgroups();
		*pid = spare;
		*sock = spare_sock;
		spare_sock = -1;
		spare = 0;
		return 0;
	}
	int err = fork_launcher(pid, sock, 1);
	if (err == 0 && (err = hand_over(*sock, l)) < 0) {
		close(*sock); /* it ends by itself then */
		*pid = 0;
	}
	return err;
}
