/*
 * A thread more in libcontainer's init life, with a socket to the launcher.
 *
 * When libcontainer's init is done, and only waits to execute the program, the
 * launcher wakes the thread. It gives init the container's own /dev/null in the
 * place of the host's, whose mode the container could change through the open
 * file: libcontainer does that only where it has made /dev, which it has not where
 * that is a mount of the pod's or is staged (stage.go). And
 * it loads the seccomp filter of a container's first process from what was
 * compiled before, for all threads at once: libcontainer can only compile a
 * profile itself, in each container's init, which takes longer than all the
 * rest. Having been made before libcontainer drops privileges, the thread has
 * those that loading takes.
 *
 * And it ends where the program begins: execve(2) ends all other threads of a
 * process first, so the launcher sees the socket close. By then the thread has
 * a table of files of its own, since libcontainer closes all files of init a
 * moment earlier.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "link.h"
#include "null.h"

#define STACK (32 * 1024)

static struct {
	int sock;
	uint32_t flags;
	struct sock_fprog prog;
} want;

static int huge_pages; /* the program may have them */

/*
 * no_huge_pages is for init, whose memory is charged to the container. Where
 * transparent huge pages are on for all, the first bytes of Go's heap would be
 * 2 MiB, as much as everything else together, and the kernel kills in a small
 * container instead of splitting them. The setting is of the memory, which
 * execve(2) hands on: the program gets back what was there before.
 */
void no_huge_pages(void)
{
	if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0)
		huge_pages = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0;
}

/* own_null replaces what of 0 to 2 is a /dev/null, whoever's. */
static int own_null(void)
{
	for (int i = 0; i < 3; i++)
		if (is_null(i) && null_take(i) < 0)
			return -1;
	return 0;
}

/*
 * The C library does not know of this thread, and its thread-local storage is
 * another's: it only makes system calls. When it has loaded the filter it is
 * under it as well, so what follows is what any profile allows that lets
 * libcontainer get to the execve.
 */
static int __attribute__((noreturn)) link_thread(void *arg)
{
	static int never;
	char c, answer = 0;
	(void)arg;
	if (syscall(SYS_read, want.sock, &c, 1) == 1) {
		if (own_null() != 0 || syscall(SYS_unshare, CLONE_FILES) != 0)
			answer = 1;
		if (huge_pages && syscall(SYS_prctl, PR_SET_THP_DISABLE, 0, 0, 0, 0) != 0)
			answer = 1;
		/* Others wait for the end of what else init has open. */
		syscall(SYS_close_range, 0, (unsigned)want.sock - 1, 0);
		syscall(SYS_close_range, (unsigned)want.sock + 1, ~0u, 0);
		if (answer == 0 && want.prog.len &&
		    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, want.flags | SECCOMP_FILTER_FLAG_TSYNC, &want.prog) != 0)
			answer = 1;
		syscall(SYS_write, want.sock, &answer, 1);
	}
	for (;;)
		syscall(SYS_futex, &never, FUTEX_WAIT, 0, NULL, NULL, 0);
}

/*
 * link_join starts the thread, with the filter that waits in the socket, if
 * there is one; 0 when that is done. The socket is libcontainer's from then on,
 * the thread has a copy.
 */
int link_join(int sock)
{
	size_t max = 8 + BPF_MAXINSNS * sizeof(struct sock_filter);
	char *buf = malloc(max);
	sigset_t all, old;
	if (!buf)
		return -1;
	ssize_t n = recv(sock, buf, max, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN) {
		free(buf);
	} else {
		if (n < 16 || (size_t)(n - 8) % sizeof(struct sock_filter) != 0)
			return -1;
		memcpy(&want.flags, buf, sizeof want.flags);
		want.prog.len = (unsigned short)((size_t)(n - 8) / sizeof(struct sock_filter));
		want.prog.filter = (struct sock_filter *)(void *)(buf + 8);
	}
	want.sock = fcntl(sock, F_DUPFD_CLOEXEC, 3);
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (want.sock < 0 || stack == MAP_FAILED)
		return -1;
	/* No signal may be handled on it: Go's handlers expect a thread of Go's. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	int tid = clone(link_thread, stack + STACK,
			CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, NULL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return tid < 0 ? -1 : 0;
}
