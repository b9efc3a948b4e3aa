/* The terminals of programs, of the container's own devpts. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "program.h"
#include "proto.h"
#include "terminal.h"
#include "wire.h"

#define DEVPTS_MAGIC 0x1cd1

/*
 * terminal_open makes a terminal, and returns its master. The path is in the
 * container's hands, so what was opened is looked at before it is used.
 */
int terminal_open(struct program *p, const struct msg *m)
{
	struct stat st;
	struct statfs fs;
	int unlock = 0;
	int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return program_bad(p, "open /dev/pts/ptmx: %s", strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(5, 2) || fstatfs(fd, &fs) < 0 ||
	    fs.f_type != DEVPTS_MAGIC)
		return program_bad(p, "/dev/pts/ptmx of the container is not a terminal");
	if (ioctl(fd, TIOCSPTLCK, &unlock) < 0)
		return program_bad(p, "unlock terminal: %s", strerror(errno));
	p->slave = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (p->slave < 0)
		return program_bad(p, "open terminal: %s", strerror(errno));
	struct winsize ws = { .ws_row = (unsigned short)tag_u32(m, TAG_HEIGHT),
			      .ws_col = (unsigned short)tag_u32(m, TAG_WIDTH) };
	if (ws.ws_row || ws.ws_col)
		ioctl(fd, TIOCSWINSZ, &ws);
	return fd;
}

/* terminal_take takes a master that entry_terminal has sent; -1 when there is none. */
int terminal_take(int sock)
{
	char t;
	int master = -1;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof master)];
	} ctl;
	struct iovec v = { &t, 1 };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };
	if (recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
		return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&master, CMSG_DATA(c), sizeof master);
	return master;
}
