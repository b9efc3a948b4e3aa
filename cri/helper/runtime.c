/*
 * Containers of another OCI runtime: an executable with runc's command line
 * makes them where libcontainer would, and a process of ours stands between it
 * and the keeper. As a subreaper that process is the parent of what the runtime
 * leaves behind, so that the keeper learns how it ended: the container's init
 * becomes the keeper's child when the launch is over, and a process of exec
 * stays a child of its entry process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"
#include "hush.h"
#include "kin.h"
#include "launch.h"
#include "null.h"
#include "program.h"
#include "proto.h"
#include "runtime.h"
#include "sandbox.h"
#include "sys.h"
#include "wire.h"

#define MOREARGS 16

/* What is said to the runtime, and where its answers are. */
struct call {
	const struct msg *m;
	const struct entry *e; /* of an exec */
	char **argv; /* what all its commands begin with, with room for MOREARGS */
	int nargv;
	int dir;      /* <bundle>/run, for what the runtime makes itself */
	int log;      /* a memfd with its errors */
	int listener; /* for the terminal, -1 without one */
	char logpath[64], pidpath[64], sockpath[64];
	char pidname[32], sockname[32];
};

/*
 * hide_cgroup2 gives this process a mount table without the v2 side of a hybrid
 * cgroup layout. crun refuses a layout whose v2 side has controllers, as some
 * kernels have them by default, and works well with the v1 hierarchies alone.
 * All other mounts go on as the host's: what a container is to propagate does.
 */
static int hide_cgroup2(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/sys/fs/cgroup", NULL, MS_PRIVATE, NULL) < 0)
		return -1;
	return umount2("/sys/fs/cgroup/unified", MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT ? -1 : 0;
}

/* veiled is the life in which this binary executes a command behind hide_cgroup2. */
void veiled(char **argv)
{
	if (!argv[0] || hide_cgroup2() < 0) {
		dprintf(2, "hide the v2 side of the cgroups: %s\n", strerror(errno));
		_exit(126);
	}
	execv(argv[0], argv);
	dprintf(2, "execute %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/*
 * clean removes what a runtime has left, or this process. runc writes the file
 * with the process number under a name with a dot before it is renamed, and does
 * not write over one of that name, which a runtime that was killed leaves.
 */
static void clean(struct call *c)
{
	char part[sizeof c->pidname + 1];
	snprintf(part, sizeof part, ".%s", c->pidname);
	unlinkat(c->dir, part, 0);
	unlinkat(c->dir, c->pidname, 0);
	unlinkat(c->dir, c->sockname, 0);
}

/*
 * prepare takes place beside the container that is to be made. Paths go through
 * /proc, because a bundle's may be longer than a socket address.
 */
static void prepare(struct call *c, const struct msg *m, int tty)
{
	size_t at = 0;
	struct span v;
	char *bundle = span_dup(tag_str(m, TAG_BUNDLE)), path[4096];
	int pid = getpid();

	memset(c, 0, sizeof *c);
	c->m = m;
	c->listener = -1;
	/*
	 * The keeper is not dumpable, and so are its copies: their /proc would be closed
	 * to a runtime without CAP_SYS_PTRACE.
	 */
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		entry_fail("become a subreaper: %s", strerror(errno));
	for (const char *p = launchcg; *p; p += strlen(p) + 1)
		join_cgroup((struct span){ p, (uint32_t)strlen(p) });
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		int e = join_cgroup(v);
		if (e < 0)
			entry_fail("join %.*s: %s", (int)v.n, v.p, strerror(-e));
	}
	c->argv = gather(m, TAG_RUNTIME, MOREARGS, NULL);
	if (!bundle || !c->argv || !c->argv[0])
		entry_fail("message is not valid");
	while (c->argv[c->nargv])
		c->nargv++;
	snprintf(path, sizeof path, "%s/run", bundle);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		entry_fail("make %s: %s", path, strerror(errno));
	c->dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	c->log = memfd_create("berth-log", MFD_CLOEXEC);
	if (c->dir < 0 || c->log < 0)
		entry_fail("open %s: %s", path, strerror(errno));
	snprintf(c->logpath, sizeof c->logpath, "/proc/%d/fd/%d", pid, c->log);
	snprintf(c->pidname, sizeof c->pidname, "%d.pid", pid);
	snprintf(c->pidpath, sizeof c->pidpath, "/proc/%d/fd/%d/%s", pid, c->dir, c->pidname);
	snprintf(c->sockname, sizeof c->sockname, "%d.sock", pid);
	clean(c); /* of an earlier process with the same number, which was killed */
	if (!tty)
		return;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	snprintf(c->sockpath, sizeof c->sockpath, "/proc/%d/fd/%d/%s", pid, c->dir, c->sockname);
	strcpy(a.sun_path, c->sockpath);
	c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(c->listener, 1) < 0)
		entry_fail("listen for the terminal: %s", strerror(errno));
}

/* unescape copies a JSON string up to its closing quote. */
static void unescape(const char *s, char *out, size_t size)
{
	size_t n = 0;
	for (; *s && *s != '"' && n + 1 < size; s++) {
		char ch = *s;
		if (ch == '\\' && s[1]) {
			ch = *++s;
			if (ch == 'n' || ch == 't' || ch == 'r')
				ch = ' ';
			if (ch == 'u') { /* a control character, or one of <>& */
				unsigned int u = 0;
				if (sscanf(s + 1, "%4x", &u) == 1 && strlen(s) > 4)
					s += 4;
				ch = u >= ' ' && u < 127 ? (char)u : '?';
			}
		}
		out[n++] = ch;
	}
	out[n] = 0;
}

/* last_error finds the runtime's last word in its log, which is one JSON object a line. */
static void last_error(struct call *c, char *out, size_t size)
{
	static char text[32 * 1024];
	off_t end = lseek(c->log, 0, SEEK_END);
	off_t from = end > (off_t)sizeof text - 1 ? end - ((off_t)sizeof text - 1) : 0;
	ssize_t n = pread(c->log, text, sizeof text - 1, from);
	const char *found = NULL;
	*out = 0;
	text[n < 0 ? 0 : n] = 0;
	for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (strstr(line, "\"error\"") || strstr(line, "\"fatal\"") || !found)
			found = line;
	if (!found)
		return;
	const char *msg = strstr(found, "\"msg\"");
	if (msg && (msg = strchr(msg + 5, '"')))
		unescape(msg + 1, out, size);
	else
		snprintf(out, size, "%s", found);
}

/*
 * hide_null replaces the host's /dev/null: what a runtime has for the container it
 * hands on as it is, for an exec. Where no device can be made, nothing can be read
 * or written.
 */
static void hide_null(struct call *c)
{
	for (int i = 0; i < 3; i++) {
		if (!is_null(i))
			continue;
		int fd = null_fresh();
		if (fd < 0)
			fd = null_end(i != 0);
		if (fd < 0 || dup2(fd, i) < 0) {
			dprintf(c->log, "{\"level\":\"error\",\"msg\":\"make a null device: %s\"}\n", strerror(errno));
			_exit(127);
		}
	}
}

/* runtime executes one command of the runtime; it returns only if that went well. */
static void runtime(struct call *c, const int stdio[3], const char *command, ...)
{
	char why[1024];
	int n = c->nargv, status;
	va_list ap;
	c->argv[n++] = "--log";
	c->argv[n++] = c->logpath;
	c->argv[n++] = "--log-format";
	c->argv[n++] = "json";
	c->argv[n++] = (char *)command;
	va_start(ap, command);
	for (char *a; (a = va_arg(ap, char *)) && n < c->nargv + MOREARGS;)
		c->argv[n++] = a;
	va_end(ap);
	c->argv[n] = NULL;
	pid_t self = getpid(), pid = fork();
	if (pid == 0) {
		end_with(self);
		if (c->e && kin_given_up(c->e->kin))
			_exit(1);
		char *envp[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL };
		for (int i = 0; i < 3; i++)
			if (stdio && stdio[i] >= 0)
				dup2(stdio[i], i);
		hide_null(c);
		close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
		child_reset();
		umask(022);
		if ((tag_u32(c->m, TAG_FLAGS) & FLAG_CGROUP1) && hide_cgroup2() < 0)
			dprintf(c->log, "{\"level\":\"error\",\"msg\":\"hide cgroup2: %s\"}\n", strerror(errno));
		else
			execve(c->argv[0], c->argv, envp);
		dprintf(c->log, "{\"level\":\"error\",\"msg\":\"execute %s: %s\"}\n", c->argv[0], strerror(errno));
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			pid = -1;
	if (c->e && kin_given_up(c->e->kin)) {
		clean(c);
		entry_undo(c->e);
		entry_fail("it is given up");
	}
	if (pid > 0 && status == 0)
		return;
	last_error(c, why, sizeof why);
	clean(c);
	if (pid < 0)
		entry_fail("start %s: %s", c->argv[0], strerror(errno));
	if (WIFSIGNALED(status))
		entry_fail("%s %s was ended by signal %d", c->argv[0], command, WTERMSIG(status));
	if (*why)
		entry_fail("%s %s: %s", c->argv[0], command, why);
	entry_fail("%s %s ended with status %d and without a word", c->argv[0], command, WEXITSTATUS(status));
}

/* pid_made reads which process the runtime has made. */
static pid_t pid_made(struct call *c)
{
	char text[32];
	pid_t pid = read_path(c->dir, c->pidname, text, sizeof text) > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
	if (pid <= 0) {
		clean(c);
		entry_fail("%s has written no process number", c->argv[0]);
	}
	return pid;
}

/* terminal takes the master of the terminal, which was sent before the runtime ended. */
static int terminal(struct call *c)
{
	char name[4096];
	int fd = -1;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof fd)];
	} ctl;
	struct iovec v = { name, sizeof name };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
	fcntl(c->listener, F_SETFL, O_NONBLOCK);
	int conn = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (conn >= 0 && recvmsg(conn, &h, MSG_CMSG_CLOEXEC) > 0) {
		struct cmsghdr *m = CMSG_FIRSTHDR(&h);
		if (m && m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(m), sizeof fd);
	}
	if (conn >= 0)
		close(conn);
	if (fd < 0) {
		clean(c);
		entry_fail("%s has sent no terminal", c->argv[0]);
	}
	return fd;
}

/* pass_terminal gives the master to the keeper, as libcontainer's init does. */
static void pass_terminal(int sock, int fd)
{
	char name[] = "tty";
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof fd)];
	} ctl;
	struct iovec v = { name, sizeof name };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
	memset(&ctl, 0, sizeof ctl);
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(sock, &h, MSG_NOSIGNAL) < 0)
		entry_fail("hand over the terminal: %s", strerror(errno));
}

/* What tells one program of a process from the next: its file, and where the kernel put what it was told of itself. */
struct image {
	dev_t dev;
	ino_t ino;
	char auxv[1024];
};

/* image_of says what a process executes: 0, or a negative errno. */
static int image_of(pid_t pid, struct image *im)
{
	char path[64];
	struct stat st;
	memset(im, 0, sizeof *im);
	snprintf(path, sizeof path, "/proc/%d/exe", pid);
	if (stat(path, &st) < 0)
		return -errno;
	im->dev = st.st_dev;
	im->ino = st.st_ino;
	snprintf(path, sizeof path, "/proc/%d/auxv", pid);
	read_path(AT_FDCWD, path, im->auxv, sizeof im->auxv);
	return 0;
}

/*
 * born_among says whether a process is in the PID namespace that the container
 * joins. What a runtime with a kernel of its own makes is not: nobody in there
 * sees it, and it never executes the program.
 */
static int born_among(pid_t pid, struct span pidns)
{
	char path[64], *joined = span_dup(pidns);
	struct stat a, b;
	snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
	int apart = joined && stat(path, &a) == 0 && stat(joined, &b) == 0 && a.st_ino != b.st_ino;
	free(joined);
	return !apart;
}

/*
 * await_exec returns when a process executes another program than it did:
 * "start" ends when that is about to happen. Others are thawed by the word of
 * it, so one that cannot be told has failed to start.
 */
static void await_exec(struct call *c, pid_t pid, const struct image *before)
{
	struct image now;
	for (int64_t deadline = mono_ns() + hush_launch_ns(); mono_ns() < deadline;) {
		int err = image_of(pid, &now);
		if (err == -ENOENT || err == -ESRCH) /* it has ended */
			return;
		if (err == 0 && memcmp(&now, before, sizeof now) != 0)
			return;
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
	}
	entry_fail("%s has not executed the program in time", c->argv[0]);
}

/* create is what a launcher does. */
static void __attribute__((noreturn)) create(const struct launch *l, int sock, pid_t keeper)
{
	struct call c;
	char said[32];
	int fds[5] = { sock, l->fds[0], l->fds[1], l->fds[2], l->fds[3] }, *stdio = fds + 1;

	end_with(keeper);
	/* All else is the keeper's: its lock above all must not outlive it here. */
	for (int i = 0; i < 5; i++)
		if (fds[i] >= 0)
			fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64);
	for (int i = 0; i < 5; i++) {
		close(ENTRY_SOCK + i);
		if (fds[i] >= 0)
			fds[i] = dup3(fds[i], ENTRY_SOCK + i, O_CLOEXEC);
	}
	close_range(ENTRY_SOCK + 5, ~0u, 0);
	prctl(PR_SET_NAME, "berth-launch", 0, 0, 0);
	prepare(&c, l->m, stdio[3] >= 0);
	if (c.listener >= 0)
		runtime(&c, stdio, "create", "--bundle", l->bundle, "--pid-file", c.pidpath,
			"--console-socket", c.sockpath, l->id, NULL);
	else
		runtime(&c, stdio, "create", "--bundle", l->bundle, "--pid-file", c.pidpath, l->id, NULL);
	pid_t pid = pid_made(&c);
	if (c.listener >= 0)
		pass_terminal(stdio[3], terminal(&c));
	clean(&c);
	/* The keeper records the pid before the program can run. */
	int n = snprintf(said, sizeof said, "P%d", pid);
	if (send(ENTRY_SOCK, said, (size_t)n, MSG_NOSIGNAL) < 0)
		_exit(1);
	struct image before;
	/* Others are frozen until the program is executed (hush.c). */
	int wait = tag_has(l->m, TAG_PIDNS) && born_among(pid, tag_str(l->m, TAG_PIDNS));
	int err = wait ? image_of(pid, &before) : 0;
	if (err < 0)
		entry_fail("look at process %d, which %s has made: %s", pid, c.argv[0], strerror(-err));
	runtime(&c, NULL, "start", l->id, NULL);
	if (wait)
		await_exec(&c, pid, &before);
	send(ENTRY_SOCK, "S", 1, MSG_NOSIGNAL);
	_exit(0);
}

/* runtime_start starts a launcher for a container of another runtime. */
int runtime_start(const struct launch *l, pid_t *pid, int *sock)
{
	pid_t keeper = getpid();
	int err = fork_paired(pid, sock);
	if (err == 1)
		create(l, *sock, keeper);
	return err;
}

/*
 * runtime_enter is an entry process that lets the runtime start the program.
 * Only the runtime knows how to get into its containers.
 */
void runtime_enter(struct entry *e)
{
	struct call c;
	char path[64];
	int tty = (tag_u32(e->m, TAG_FLAGS) & FLAG_TTY) != 0;
	struct span process = tag_str(e->m, TAG_PROCESS);
	char *id = span_dup(tag_str(e->m, TAG_ID));

	entry_begin(e);
	entry_settle(e);
	prepare(&c, e->m, tty);
	c.e = e;
	int fd = memfd_create("berth-process", MFD_CLOEXEC);
	if (!id || fd < 0 || write_all(fd, process.p, process.n) < 0)
		entry_fail("hand over the process: %s", strerror(errno));
	snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
	if (tty)
		runtime(&c, NULL, "exec", "--detach", "--process", path, "--pid-file", c.pidpath,
			"--console-socket", c.sockpath, id, NULL);
	else
		runtime(&c, NULL, "exec", "--detach", "--process", path, "--pid-file", c.pidpath, id, NULL);
	pid_t pid = pid_made(&c);
	if (tty)
		entry_terminal(ENTRY_SOCK, terminal(&c));
	clean(&c);
	e->kin->program = pid;
	entry_started(pid);
	entry_watch(e);
}
