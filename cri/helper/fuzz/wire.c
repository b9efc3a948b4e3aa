/* The messages of the keeper's socket: a packet, of which the first byte says how it is sent, and all fields of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../loop.h"
#include "../proto.h"
#include "../sys.h"
#include "../wire.h"
#include "fuzz.h"

enum { PLAIN, MEMFD, UNSEALED, FILES, WAYS };

static int memfd(const void *p, size_t n, int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && write_all(fd, p, n) >= 0);
	CHECK(!seals || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
	return fd;
}

/* post sends the header with the payload, or with a file that has it. */
static void post(int sock, int way, const uint8_t *p, size_t n)
{
	int fds[8], nfds = 0;
	size_t head = sizeof(struct header) < n ? sizeof(struct header) : n;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof fds)];
	} ctl;
	struct iovec v = { (void *)p, n };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1 };
	if (way == MEMFD || way == UNSEALED) {
		v.iov_len = head;
		fds[nfds++] = memfd(p + head, n - head, way == MEMFD);
	}
	for (; way == FILES && nfds < 7; nfds++)
		fds[nfds] = memfd("", 0, 0);
	if (nfds) {
		memset(&ctl, 0, sizeof ctl);
		h.msg_control = &ctl;
		h.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)nfds * sizeof(int));
	}
	(void)!sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (nfds > 0)
		close(fds[--nfds]);
}

/* read_fields asks for everything that any request has. */
static void read_fields(const struct msg *m)
{
	static volatile char sum;
	size_t total = 0;
	for (enum tag t = 0; t < 80; t++) {
		size_t at = 0;
		struct span v;
		while (tag_next(m, &at, t, &v)) {
			CHECK(v.p >= m->p && v.n <= m->n && v.p + v.n <= m->p + m->n);
			total += 8 + v.n;
			for (size_t i = 0; i < v.n; i++)
				sum += v.p[i];
		}
		char *s = span_dup(tag_str(m, t));
		CHECK(!s || (tag_has(m, t) && strlen(s) == tag_str(m, t).n));
		free(s);
		(void)tag_u32(m, t);
		(void)tag_u64(m, t);
	}
	CHECK(total <= m->n);
}

static void put_back(const struct msg *m)
{
	struct reply r;
	size_t at = 0;
	struct span v;
	reply_start(&r, MSG_EXIT);
	for (enum tag t = 0; t < 80; t++)
		for (at = 0; tag_next(m, &at, t, &v);)
			reply_bytes(&r, t, v.p, v.n);
	CHECK(r.n <= sizeof r.buf && msg_valid(r.buf + sizeof(struct header), r.n - sizeof(struct header)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	int p[2];
	struct msg m;
	if (n < 1 || n > SCRATCH)
		return 0;
	/* Once by itself, with nothing behind it that could be read. */
	struct msg bare = { .p = (const char *)data + 1, .n = n - 1 };
	if (msg_valid(bare.p, bare.n)) {
		read_fields(&bare);
		put_back(&bare);
	}
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p) == 0);
	post(p[0], data[0] % WAYS, data + 1, n - 1);
	int got = msg_recv(p[1], &m);
	if (got == 1 && m.h.op != MSG_DATA) {
		CHECK(msg_valid(m.p, m.n));
		read_fields(&m);
		put_back(&m);
	}
	if (got == 1)
		msg_free(&m);
	CHECK(m.nfds == 0 && !m.map);
	close(p[0]);
	close(p[1]);
	scratch_free();
	return 0;
}
