/*
 * The entry process: it joins the container's cgroups and namespaces, starts
 * the program, and then holds nothing but a socket to the keeper, on which it
 * tells the program's end, or one to the agent (capture.c).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"

/* The descriptors an entry process keeps, after 0, 1 and 2. */
enum { FD_SOCK = ENTRY_SOCK, FD_CONN = ENTRY_CONN, FD_OUT = ENTRY_OUT, FD_ERR, FD_PIDFD, FD_PROC, FD_LAST };

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

/*
 * entry_settle brings the descriptors into their places and closes all others: those
 * of the keeper, among them directories of the host, must not be there when the
 * container is joined (CVE-2024-21626).
 */
void entry_settle(struct entry *e)
{
	int fds[FD_LAST] = { e->stdio[0], e->stdio[1], e->stdio[2], e->sock, e->conn, e->out[0], e->out[1], e->pidfd, -1 };
	/* The host's /proc is taken along only when there is something to write there. */
	int proc = tag_has(e->m, TAG_APPARMOR) || tag_has(e->m, TAG_SELINUX);
	if (proc)
		fds[FD_PROC] = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < FD_LAST; i++)
		/* Out of the way. What is missing of 0 to 2 is the keeper's, which is /dev/null. */
		if (fds[i] >= 0 && fds[i] < FD_LAST)
			fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64);
	for (int i = 0; i < FD_LAST; i++)
		if (fds[i] >= 0)
			dup3(fds[i], i, i < FD_SOCK ? 0 : O_CLOEXEC);
		else if (i >= FD_SOCK)
			close(i);
	close_range(FD_LAST, ~0u, 0);
	if (proc && fds[FD_PROC] < 0)
		entry_fail("open /proc: %s", strerror(errno));
}

static void join_cgroups(const struct msg *m)
{
	size_t at = 0;
	struct span v;
	while (tag_next(m, &at, TAG_CGROUP, &v)) {
		int e = join_cgroup(v);
		if (e < 0)
			entry_fail("join %.*s: %s", (int)v.n, v.p, strerror(-e));
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
		entry_fail("set oom_score_adj: %s", strerror(-e));
}

/* set_rlimits comes before the user namespace, in which none could be raised. */
static void set_rlimits(const struct msg *m)
{
	size_t at = 0;
	struct span v;
	while (tag_next(m, &at, TAG_RLIMIT, &v)) {
		uint32_t res;
		uint64_t lim[2];
		if (v.n != sizeof res + sizeof lim)
			entry_fail("rlimit is not valid");
		memcpy(&res, v.p, sizeof res);
		memcpy(lim, v.p + sizeof res, sizeof lim);
		struct rlimit r = { lim[0], lim[1] };
		if (setrlimit((__rlimit_resource_t)res, &r) < 0)
			entry_fail("set rlimit %u: %s", res, strerror(errno));
	}
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
static void give_stdio(struct entry *e, uint32_t uid)
{
	struct stat st;
	uint32_t owner = host_id(e->pid, "uid_map", uid);
	for (int i = 0; i < 3 && owner; i++)
		if (fstat(i, &st) == 0 && S_ISFIFO(st.st_mode) && fchown(i, owner, (gid_t)-1) < 0)
			entry_fail("change owner of stdio: %s", strerror(errno));
}

static void join_namespaces(struct entry *e)
{
	int flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP;
	if (e->user)
		flags |= CLONE_NEWUSER;
	if (setns(FD_PIDFD, flags) < 0)
		entry_fail("join namespaces of the container: %s", strerror(errno));
	if (e->user && (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0))
		entry_fail("become root of the container: %s", strerror(errno));
}

#define DEVPTS_MAGIC 0x1cd1

/*
 * open_terminal makes a terminal of the container's own devpts. The path is in
 * the container's hands, so what was opened is looked at before it is used.
 */
static int open_terminal(const struct msg *m, int *slave)
{
	struct stat st;
	struct statfs fs;
	int unlock = 0;
	int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		entry_fail("open /dev/pts/ptmx: %s", strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(5, 2) || fstatfs(fd, &fs) < 0 ||
	    fs.f_type != DEVPTS_MAGIC)
		entry_fail("/dev/pts/ptmx of the container is not a terminal");
	if (ioctl(fd, TIOCSPTLCK, &unlock) < 0)
		entry_fail("unlock terminal: %s", strerror(errno));
	*slave = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*slave < 0)
		entry_fail("open terminal: %s", strerror(errno));
	struct winsize ws = { .ws_row = (unsigned short)tag_u32(m, TAG_HEIGHT),
			      .ws_col = (unsigned short)tag_u32(m, TAG_WIDTH) };
	if (ws.ws_row || ws.ws_col)
		ioctl(fd, TIOCSWINSZ, &ws);
	return fd;
}

/*
 * entry_started sends the program's pid as credentials, which the kernel
 * translates into the keeper's PID namespace, and the terminal's master.
 */
void entry_started(pid_t pid, int master)
{
	struct ucred who = { pid, getuid(), getgid() };
	char s = 'S';
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof who) + CMSG_SPACE(sizeof master)];
	} ctl;
	memset(&ctl, 0, sizeof ctl);
	struct iovec v = { &s, 1 };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl };
	h.msg_controllen = master < 0 ? CMSG_SPACE(sizeof who) : sizeof ctl;
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_CREDENTIALS;
	c->cmsg_len = CMSG_LEN(sizeof who);
	memcpy(CMSG_DATA(c), &who, sizeof who);
	if (master >= 0) {
		c = CMSG_NXTHDR(&h, c);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof master);
		memcpy(CMSG_DATA(c), &master, sizeof master);
	}
	if (sendmsg(FD_SOCK, &h, MSG_NOSIGNAL) < 0)
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

/* entry_watch reaps until the program, and all it left behind, has ended. */
void entry_watch(pid_t program)
{
	int status;
	close_range(0, FD_SOCK - 1, 0);
	close_range(FD_SOCK + 1, ~0u, 0);
	keep_none();
	for (;;) {
		pid_t pid = waitpid(-1, &status, 0);
		if (pid == program)
			entry_ended(status);
		if (pid < 0 && errno == ECHILD)
			_exit(0);
	}
}

#define STACK (128 * 1024)

void enter(struct entry *e)
{
	static struct program p;
	static char stack[STACK] __attribute__((aligned(16)));
	int master = -1;

	direct = e->conn >= 0;
	if (direct)
		capture_pipes(e);
	int joined = e->born || (e->groups && groups_join(e->groups));
	entry_settle(e);
	prctl(PR_SET_NAME, "berth-exec", 0, 0, 0);
	set_title("berth-exec");
	if (program_parse(&p, e->m) < 0)
		entry_fail("%s", p.err);
	set_oom(e->m, e->pid);
	if (!joined)
		join_cgroups(e->m);
	set_rlimits(e->m);
	if (e->user && !p.tty)
		give_stdio(e, p.uid);
	join_namespaces(e);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		entry_fail("become a subreaper: %s", strerror(errno));
	p.proc = FD_PROC; /* if it is there */
	p.user = e->user;
	p.slave = -1;
	if (p.tty)
		master = open_terminal(e->m, &p.slave);
	/*
	 * As vfork(2): the program's process borrows this one's memory, with a
	 * stack of its own, until it executes, and this one sleeps meanwhile.
	 * That saves a copy of the page tables, and what went wrong is here.
	 */
	pid_t pid = clone(program_exec, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &p);
	if (pid < 0)
		entry_fail("fork: %s", strerror(errno));
	if (p.err[0])
		entry_fail("%s", p.err);
	if (direct) {
		close_range(FD_PIDFD, ~0u, 0);
		keep_none();
		capture(pid);
	}
	entry_started(pid, master);
	entry_watch(pid);
}
