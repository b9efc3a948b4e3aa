/* Messages: taking them apart with every length checked, and building them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop.h"
#include "proto.h"
#include "wire.h"

static void take_files(struct msg *m, struct msghdr *h)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
			if (m->nfds < 4)
				m->fds[m->nfds++] = fd;
			else
				close(fd);
		}
	}
}

/* msg_map makes the sealed memfd, the first file, the payload. */
static int msg_map(struct msg *m)
{
	struct stat st;
	if (m->nfds == 0 || m->h.len == 0 || m->h.len > PROTO_PAYLOAD)
		return -EBADMSG;
	int seals = fcntl(m->fds[0], F_GET_SEALS);
	/* Without the seals it could shrink, and reading it be a SIGBUS. */
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
		return -EPERM;
	if (fstat(m->fds[0], &st) < 0 || st.st_size != m->h.len)
		return -EBADMSG;
	void *map = mmap(NULL, m->h.len, PROT_READ, MAP_PRIVATE, m->fds[0], 0);
	if (map == MAP_FAILED)
		return -errno;
	m->map = map;
	m->p = map;
	m->n = m->h.len;
	close(m->fds[0]);
	m->nfds--;
	memmove(m->fds, m->fds + 1, sizeof(int) * (size_t)m->nfds);
	return 0;
}

/* msg_valid says whether the fields fill the payload exactly. */
int msg_valid(const char *p, size_t n)
{
	size_t at = 0;
	while (at < n) {
		uint32_t len;
		if (n - at < 8)
			return 0;
		memcpy(&len, p + at + 4, 4);
		at += 8;
		if (len > n - at)
			return 0;
		at += len;
	}
	return 1;
}

/*
 * msg_recv reads one message: 1 when there is one, 0 at the end or without a
 * packet (errno EAGAIN), or a negative errno for what is not a message of ours.
 * An inline payload is in the scratch buffer until the next one is read.
 */
int msg_recv(int fd, struct msg *m)
{
	char *buf = scratch_in();
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(8 * sizeof(int))];
	} ctl;
	struct iovec v = { buf, SCRATCH };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl };

	memset(m, 0, sizeof *m);
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	/* Who hung up without having read all has perhaps said something before: the kernel puts that after the error. */
	if (n < 0 && errno == ECONNRESET)
		n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return 0;
	take_files(m, &h);
	if (n == 0) {
		msg_free(m);
		errno = 0;
		return 0;
	}
	int err = -EBADMSG;
	if ((size_t)n < sizeof m->h || (h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		goto bad;
	memcpy(&m->h, buf, sizeof m->h);
	if (m->h.magic != PROTO_MAGIC)
		goto bad;
	if (m->h.flags & MSG_MEMFD) {
		if ((err = msg_map(m)) < 0)
			goto bad;
	} else {
		m->p = buf + sizeof m->h;
		m->n = (size_t)n - sizeof m->h;
		if (m->h.len != m->n)
			goto bad;
	}
	if (m->h.op != MSG_DATA && !msg_valid(m->p, m->n)) {
		err = -EBADMSG;
		goto bad;
	}
	return 1;
bad:
	msg_free(m);
	return err;
}

void msg_free(struct msg *m)
{
	for (int i = 0; i < m->nfds; i++)
		if (m->fds[i] >= 0)
			close(m->fds[i]);
	m->nfds = 0;
	if (m->map)
		munmap(m->map, m->n);
	m->map = NULL;
}

/* tag_next finds the next field of a tag from an offset that begins with 0. */
int tag_next(const struct msg *m, size_t *at, enum tag t, struct span *v)
{
	while (*at < m->n) {
		uint16_t tag;
		uint32_t len;
		memcpy(&tag, m->p + *at, 2);
		memcpy(&len, m->p + *at + 4, 4);
		*at += 8;
		v->p = m->p + *at;
		v->n = len;
		*at += len;
		if (tag == t)
			return 1;
	}
	return 0;
}

struct span tag_str(const struct msg *m, enum tag t)
{
	size_t at = 0;
	struct span v;
	if (!tag_next(m, &at, t, &v))
		return (struct span){ "", 0 };
	return v;
}

int tag_has(const struct msg *m, enum tag t)
{
	size_t at = 0;
	struct span v;
	return tag_next(m, &at, t, &v);
}

uint32_t tag_u32(const struct msg *m, enum tag t)
{
	struct span v = tag_str(m, t);
	uint32_t n = 0;
	if (v.n == sizeof n)
		memcpy(&n, v.p, sizeof n);
	return n;
}

uint64_t tag_u64(const struct msg *m, enum tag t)
{
	struct span v = tag_str(m, t);
	uint64_t n = 0;
	if (v.n == sizeof n)
		memcpy(&n, v.p, sizeof n);
	return n;
}

/* span_dup copies a string; NULL when it is empty or has a NUL inside. */
char *span_dup(struct span s)
{
	if (s.n == 0 || memchr(s.p, 0, s.n))
		return NULL;
	return strndup(s.p, s.n);
}

void reply_start(struct reply *r, enum op op)
{
	struct header h = { PROTO_MAGIC, PROTO_VERSION, op, 0, 0 };
	memcpy(r->buf, &h, sizeof h);
	r->n = sizeof h;
}

void reply_bytes(struct reply *r, enum tag t, const void *p, size_t n)
{
	uint16_t tag[2] = { t, 0 };
	if (r->n + 8 > sizeof r->buf)
		return;
	if (n > sizeof r->buf - r->n - 8)
		n = sizeof r->buf - r->n - 8;
	uint32_t len = (uint32_t)n;
	memcpy(r->buf + r->n, tag, 4);
	memcpy(r->buf + r->n + 4, &len, 4);
	memcpy(r->buf + r->n + 8, p, n);
	r->n += 8 + n;
}

void reply_u32(struct reply *r, enum tag t, uint32_t v)
{
	reply_bytes(r, t, &v, sizeof v);
}

void reply_u64(struct reply *r, enum tag t, uint64_t v)
{
	reply_bytes(r, t, &v, sizeof v);
}

/* reply_send never waits: an agent that does not read loses its answer. */
int reply_send(struct reply *r, int fd, int pass)
{
	uint32_t len = (uint32_t)(r->n - sizeof(struct header));
	memcpy(r->buf + offsetof(struct header, len), &len, 4);
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} ctl;
	struct iovec v = { r->buf, r->n };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1 };
	if (pass >= 0) {
		memset(&ctl, 0, sizeof ctl);
		h.msg_control = &ctl;
		h.msg_controllen = sizeof ctl;
		struct cmsghdr *c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass, sizeof pass);
	}
	return sendmsg(fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

void reply_error(int fd, int err, const char *fmt, ...)
{
	struct reply r;
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	reply_start(&r, MSG_ERROR);
	reply_u32(&r, TAG_STATUS, (uint32_t)err);
	reply_bytes(&r, TAG_TEXT, text, strlen(text));
	reply_send(&r, fd, -1);
}
