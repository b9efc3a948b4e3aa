/*
 * A command whose output is wanted in one piece, as a probe's is. The entry
 * process reads it, and answers the agent over the agent's own connection: so
 * the agent needs no pipe, and is woken once, and the keeper only by the end of
 * the entry process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entry.h"
#include "kin.h"
#include "proto.h"
#include "sys.h"

#define CHUNK (16 * 1024) /* both in one packet are far below PROTO_INLINE */
#define DRAIN 1000	  /* ms that what was left behind may hold the output open */

static char texts[2][CHUNK];
static size_t filled[2]; /* bytes of each: beside the texts they would be pages of their own */

/* tell sends to the agent, and waits until it takes it. 0, or -1 when it has hung up. */
static int tell(struct iovec *v, int n)
{
	struct msghdr h = { .msg_iov = v, .msg_iovlen = (size_t)n };
	while (sendmsg(ENTRY_CONN, &h, MSG_NOSIGNAL) < 0) {
		struct pollfd w = { ENTRY_CONN, POLLOUT, 0 };
		if (errno != EINTR && (errno != EAGAIN || poll(&w, 1, -1) < 0))
			return -1;
	}
	return 0;
}

/* tell_data sends what has come of a stream before the command has ended. */
static int tell_data(int i)
{
	struct header h = { PROTO_MAGIC, PROTO_VERSION, MSG_DATA, (uint32_t)(STREAM_STDOUT + i), (uint32_t)filled[i] };
	struct iovec v[2] = { { &h, sizeof h }, { texts[i], filled[i] } };
	filled[i] = 0;
	return tell(v, 2);
}

/* tell_end sends the status, and the rest of the output with it. */
static void tell_end(int status)
{
	struct field {
		uint16_t tag, zero;
		uint32_t len;
	} st = { TAG_STATUS, 0, sizeof status }, f[2];
	struct header h = { PROTO_MAGIC, PROTO_VERSION, MSG_EXIT, 0, (uint32_t)(sizeof st + sizeof status) };
	struct iovec v[7] = { { &h, sizeof h }, { &st, sizeof st }, { &status, sizeof status } };
	int n = 3;
	for (int i = 0; i < 2; i++) {
		if (!filled[i])
			continue;
		f[i] = (struct field){ (uint16_t)(TAG_STDOUT + i), 0, (uint32_t)filled[i] };
		v[n++] = (struct iovec){ &f[i], sizeof f[i] };
		v[n++] = (struct iovec){ texts[i], filled[i] };
		h.len += (uint32_t)(sizeof f[i] + filled[i]);
	}
	tell(v, n);
}

/*
 * take reads what there is of a stream, and says how much. Without a reader of its
 * own, the agent, the program is to lose its.
 */
static ssize_t take(struct pollfd w[2], int i)
{
	/* At the end of a pipe that is empty there is no POLLIN. */
	ssize_t n = w[i].revents & POLLIN ? read(w[i].fd, texts[i] + filled[i], CHUNK - filled[i]) : 0;
	if (n < 0 && errno == EINTR)
		return 0;
	if (n > 0)
		filled[i] += (size_t)n;
	int gone = filled[i] == CHUNK && tell_data(i) < 0;
	for (int j = 0; j < 2; j++)
		if (w[j].fd >= 0 && (gone || (j == i && n <= 0))) {
			close(w[j].fd);
			w[j].fd = -1;
		}
	return n;
}

/*
 * take_rest reads what is in a pipe that is not waited for any longer. On a
 * machine that is busy, or with an agent that takes nothing for a while, it may
 * be of the program itself.
 */
static void take_rest(struct pollfd w[2], int i)
{
	int left;
	if (w[i].fd < 0 || ioctl(w[i].fd, FIONREAD, &left) < 0)
		return;
	w[i].revents = POLLIN;
	while (left > 0 && w[i].fd >= 0)
		left -= (int)take(w, i);
}

/*
 * has_ended says whether the program has. It is left to be reaped, as then its
 * number stands for its session: who gives up what it left behind needs that.
 */
static int has_ended(int sfd, pid_t program, int *status)
{
	struct signalfd_siginfo info;
	siginfo_t how = { 0 };
	read(sfd, &info, sizeof info); /* there is one at most */
	if (waitid(P_PID, (id_t)program, &how, WEXITED | WNOHANG | WNOWAIT) < 0 || how.si_pid != program)
		return 0;
	*status = how.si_code == CLD_EXITED ? (how.si_status & 0xff) << 8 :
					      how.si_status | (how.si_code == CLD_DUMPED ? 0x80 : 0);
	return 1;
}

/* capture_pipes makes the outputs' ends. */
void capture_pipes(struct entry *e)
{
	int p[2];
	for (int i = 0; i < 2; i++) {
		if (pipe2(p, O_CLOEXEC) < 0)
			entry_die(e, "make a pipe: %s", strerror(errno));
		e->out[i] = p[0];
		e->stdio[1 + i] = p[1];
	}
}

/* leave ends the entry process, and reaps the program. What that left behind is the container's. */
static void __attribute__((noreturn)) leave(struct entry *e)
{
	/*
	 * Of one that was given up all have been killed: they are here where the host's
	 * PID namespace is the container's.
	 */
	int killed = kin_given_up(e->kin);
	while (waitpid(-1, NULL, killed ? 0 : WNOHANG) > 0) {
	}
	e->kin->program = 0;
	_exit(0);
}

/* capture collects the output until the program has ended and nobody writes any more, and tells the agent. */
void capture(struct entry *e)
{
	sigset_t set;
	int64_t until = 0;
	int status = 0, ended = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD); /* it is blocked, as the keeper has it */
	struct pollfd w[3] = { { ENTRY_OUT, POLLIN, 0 }, { ENTRY_OUT + 1, POLLIN, 0 }, { -1, POLLIN, 0 } };
	w[2].fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (w[2].fd < 0)
		entry_fail("watch the program: %s", strerror(errno));
	for (int rounds = 0; !ended || w[0].fd >= 0 || w[1].fd >= 0;) {
		int64_t left = -1;
		if (ended && rounds++ == 0) {
			left = 0; /* as a rule that is all, and no clock is needed */
		} else if (ended) {
			if (!until)
				until = mono_ns() + DRAIN * (int64_t)1000000;
			if ((left = (until - mono_ns()) / 1000000) <= 0)
				break;
		}
		if (poll(w, 3, (int)left) <= 0)
			continue;
		for (int i = 0; i < 2; i++)
			if (w[i].fd >= 0 && w[i].revents)
				take(w, i);
		if (w[2].revents && !ended && has_ended(w[2].fd, e->kin->program, &status)) {
			ended = 1;
			w[2].fd = -1;
			/* With the ends kept here until now the program's exit wakes this process once, not for its output too. */
			close_range(0, ENTRY_SOCK - 1, 0);
		}
	}
	for (int i = 0; i < 2; i++)
		take_rest(w, i);
	tell_end(status);
	leave(e);
}
