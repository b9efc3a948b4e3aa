/*
 * Process 1 of the PID namespace that the containers of a pod share. It only
 * has to be there, and to be the parent of orphans: with SIGCHLD ignored the
 * kernel reaps them by itself. It ends with its keeper, whatever ends that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "podinit.h"
#include "proto.h"
#include "sandbox.h"
#include "sys.h"
#include "wire.h"

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#endif

/*
 * birth_prepare opens what process 1 is to have from its first moment: the
 * groups of the pod, since who may move into them is decided by who opens the
 * file, and in a user namespace it is nobody. The pipe is how it tells that it
 * is there. The keeper alone has its end to read from, for as long as it lives
 * and process 1 starts, so that one that writes knows that the keeper does.
 */
int birth_prepare(struct birth *b, const struct msg *m, char *err, size_t size)
{
	size_t at = 0;
	struct span v;
	b->said[0] = b->said[1] = -1;
	b->n = 0;
	while (tag_next(m, &at, TAG_INITCG, &v)) {
		int fd = b->n < BIRTHGROUPS ? open_cgroup(v) : -E2BIG;
		if (fd < 0) {
			snprintf(err, size, "join %.*s: %s", (int)v.n, v.p, strerror(-fd));
			goto bad;
		}
		b->groups[b->n++] = fd;
	}
	if (pipe2(b->said, O_CLOEXEC) == 0)
		return 0;
	snprintf(err, size, "make pipe: %s", strerror(errno));
bad:
	birth_over(b);
	return -1;
}

/* birth_over closes what is still open of it. */
void birth_over(struct birth *b)
{
	for (int i = 0; i < 2; i++)
		if (b->said[i] >= 0)
			close(b->said[i]);
	while (b->n > 0)
		close(b->groups[--b->n]);
	b->said[0] = b->said[1] = -1;
}

/*
 * only_wait allows no system call any more but those it still needs. A container
 * with CAP_SYS_PTRACE may trace it, and would else have a process without the
 * filter that the container itself has.
 */
static int only_wait(void)
{
#ifdef OUR_ARCH
	static const int calls[] = { SYS_ppoll, SYS_restart_syscall, SYS_rt_sigreturn, SYS_write,
				     SYS_close_range, SYS_exit, SYS_exit_group };
	enum { N = sizeof calls / sizeof *calls };
	struct sock_filter f[3 + N + 2];
	unsigned short n = 0;
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 0, N + 1);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < N; i++)
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], (uint8_t)(N - i), 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog prog = { n, f };
	/* A kernel without filters says EINVAL. No container has one there. */
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) < 0 && errno != EINVAL)
		return -1;
#endif
	return 0;
}

/*
 * empty_root leaves the process nothing of the host's mounts. It returns the
 * step that failed.
 */
static const char *empty_root(void)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return "make mounts private";
	if (mount("berth", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555") < 0 ||
	    chdir("/proc") < 0)
		return "mount an empty root";
	if (syscall(SYS_pivot_root, ".", ".") == 0) {
		if (umount2(".", MNT_DETACH) < 0)
			return "change root";
	} else if (mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0) {
		/* An initramfs cannot be pivoted away from. */
		return "change root";
	}
	return chdir("/") < 0 ? "change root" : NULL;
}

static int drop_privileges(int user)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct nocaps[2] = { 0 };
	if (syscall(SYS_setgroups, 0, NULL) < 0)
		return -1;
	/* A pod's own range of ids may be so small that nobody is not in it. */
	if (syscall(SYS_setresgid, 65534, 65534, 65534) < 0 && !(user && errno == EINVAL))
		return -1;
	if (syscall(SYS_setresuid, 65534, 65534, 65534) < 0 && !(user && errno == EINVAL))
		return -1;
	if (syscall(SYS_capset, &h, nocaps) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/*
 * pod_init is seen by the containers, so it holds nothing: an empty root in a
 * mount namespace of its own, no descriptor, no privilege.
 */
static void __attribute__((noreturn)) pod_init(struct birth *b, int user)
{
	sigset_t none;
	const char *step;
	/*
	 * The keeper is its parent: of the clone in the user namespace by
	 * CLONE_PARENT, and it has one thread. The kernel forgets the signal when
	 * the ids change, so it is set twice. To look at the parent afterwards
	 * says nothing in a PID namespace, where any parent is 0.
	 */
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	close(b->said[0]);
	step = "join the groups of the pod";
	for (int i = 0; i < b->n; i++)
		if (write(b->groups[i], "0", 1) != 1)
			goto bad;
	if ((step = empty_root()))
		goto bad;
	step = "drop privileges";
	if (drop_privileges(user) < 0)
		goto bad;
	step = "end with the keeper";
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		goto bad;
	prctl(PR_SET_NAME, "pause", 0, 0, 0);
	set_title("/pause");
	signal(SIGCHLD, SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	step = "give up all other system calls";
	if (only_wait() < 0)
		goto bad;
	/* A keeper that died before the signal was set has closed the other end. */
	if (write(b->said[1], "+", 1) != 1)
		_exit(1);
	close_range(0, ~0u, 0);
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
bad:
	dprintf(b->said[1], "%s: %s", step, strerror(errno));
	_exit(1);
}

/*
 * birth starts process 1 as a child of the keeper, also from a child of that in
 * the user namespace of the pod.
 */
pid_t birth(struct birth *b, int user)
{
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | (user ? CLONE_PARENT : 0) | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		pod_init(b, user);
	return pid;
}

/* birth_wait returns when process 1 is settled, or says why it is not. */
int birth_wait(struct birth *b, char *err, size_t size)
{
	char buf[128];
	close(b->said[1]);
	b->said[1] = -1;
	ssize_t n;
	do
		n = read(b->said[0], buf, sizeof buf - 1);
	while (n < 0 && errno == EINTR);
	birth_over(b);
	buf[n > 0 ? n : 0] = 0;
	if (n > 0 && buf[0] == '+')
		return 0;
	snprintf(err, size, "start process 1 of the pod: %s", n > 0 ? buf : "it died");
	return -1;
}
