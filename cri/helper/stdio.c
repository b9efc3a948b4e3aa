/* The stdio of containers: to their logs, and to and from who is attached. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "proto.h"
#include "state.h"
#include "streams.h"
#include "wire.h"

#define PACKET (32 * 1024)
#define BACKLOG (4 * 1024 * 1024) /* what an attacher may be behind */

/* send_data says whether the attacher took it; one that did not is cut off. */
static int send_data(struct conn *c, int stream, const char *p, size_t n)
{
	while (n > 0) {
		size_t len = n < PACKET ? n : PACKET;
		struct header h = { PROTO_MAGIC, PROTO_VERSION, MSG_DATA, (uint32_t)stream, (uint32_t)len };
		struct iovec v[2] = { { &h, sizeof h }, { (char *)p, len } };
		struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
		if (sendmsg(c->s.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			return 0;
		p += len;
		n -= len;
	}
	return 1;
}

static void attachers_end(struct ctr *k)
{
	while (k->attached)
		conn_close(k->attached);
}

static void stream_end(struct stream *s)
{
	struct ctr *k = s->ctr;
	log_end(s);
	source_del(&s->s);
	if (k->out[0].s.fd < 0 && k->out[1].s.fd < 0)
		attachers_end(k);
}

/* stream_read copies what can be read at once; 0 when there is nothing now. */
static ssize_t stream_read(struct stream *s)
{
	struct conn *next;
	char *buf = scratch_in();
	ssize_t n = read(s->s.fd, buf, SCRATCH);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) { /* a terminal nobody has open says EIO */
		stream_end(s);
		return 0;
	}
	log_data(s, buf, (size_t)n);
	for (struct conn *c = s->ctr->attached; c; c = next) {
		next = c->next;
		if (!send_data(c, s->num, buf, (size_t)n))
			conn_close(c);
	}
	return n;
}

static void stream_ready(struct source *s, uint32_t events)
{
	(void)events;
	stream_read((struct stream *)s);
}

/* input_end closes stdin; what attachers still had to say is dropped. */
static void input_end(struct ctr *k)
{
	source_del(&k->in.s);
	for (struct conn *c = k->attached; c; c = c->next) {
		free(c->pending);
		c->pending = NULL;
		source_resume(&c->s, EPOLLIN);
	}
}

/* input_write writes an attacher's bytes; what does not fit waits in it. */
static int input_write(struct conn *c)
{
	struct ctr *k = c->ctr;
	while (c->opending < c->npending) {
		ssize_t n = write(k->in.s.fd, c->pending + c->opending, c->npending - c->opending);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0) {
			input_end(k);
			return 1;
		}
		c->opending += (uint32_t)n;
	}
	free(c->pending);
	c->pending = NULL;
	return 1;
}

static void input_ready(struct source *s, uint32_t events)
{
	struct ctr *k = ((struct input *)s)->ctr;
	(void)events;
	for (struct conn *c = k->attached; c; c = c->next) {
		if (!c->pending)
			continue;
		if (!input_write(c))
			return;
		if (s->fd < 0)
			return;
		source_resume(&c->s, EPOLLIN);
	}
	/* Only while something waits: a pipe without a reader would never be quiet. */
	source_pause(s);
}

/* stdio_watch takes over the keeper's ends; -1 for those there are not. */
void stdio_watch(struct ctr *k, int in, int out, int err)
{
	int fds[2] = { out, err };
	for (int i = 0; i < 2; i++) {
		struct stream *s = &k->out[i];
		if (fds[i] < 0)
			continue;
		fcntl(fds[i], F_SETFL, O_NONBLOCK | fcntl(fds[i], F_GETFL));
		source_add(&s->s, fds[i], EPOLLIN, stream_ready);
	}
	if (in >= 0) {
		fcntl(in, F_SETFL, O_NONBLOCK | fcntl(in, F_GETFL));
		k->in.s = (struct source){ .fd = in, .events = 0, .ready = input_ready };
	}
}

/*
 * stdio_drain reads what a container that ended has left in its pipes, so that
 * the log is whole before the exit is told. A process that outlives it may hold
 * a pipe open, and write without end, so there is a bound.
 */
void stdio_drain(struct ctr *k)
{
	for (int i = 0; i < 2; i++) {
		size_t total = 0;
		while (k->out[i].s.fd >= 0 && total < 2 * 1024 * 1024) {
			ssize_t n = stream_read(&k->out[i]);
			if (n <= 0) {
				/* Its end may come later: the launcher has the pipe, too, and may still be there. */
				log_end(&k->out[i]);
				break;
			}
			total += (size_t)n;
		}
	}
	input_end(k);
}

void stdio_close(struct ctr *k)
{
	attachers_end(k);
	for (int i = 0; i < 2; i++) {
		if (k->out[i].s.fd >= 0)
			log_end(&k->out[i]);
		source_del(&k->out[i].s);
	}
	source_del(&k->in.s);
	log_close(&k->log);
}

void attach_request(struct conn *c, struct msg *m)
{
	struct ctr *k = ctr_find(tag_str(m, TAG_ID));
	struct reply r;
	int size = BACKLOG;
	if (!k || (k->out[0].s.fd < 0 && k->out[1].s.fd < 0)) {
		reply_not_running(c, k);
		return;
	}
	setsockopt(c->s.fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
	c->kind = ATTACHER;
	c->ctr = k;
	c->next = k->attached;
	k->attached = c;
	reply_start(&r, MSG_OK);
	reply_u32(&r, TAG_FLAGS, k->flags);
	reply_send(&r, c->s.fd, -1);
}

void attach_message(struct conn *c, struct msg *m)
{
	struct ctr *k = c->ctr;
	switch (m->h.op) {
	case MSG_RESIZE:
		ctr_resize(k, tag_u32(m, TAG_WIDTH), tag_u32(m, TAG_HEIGHT));
		return;
	case MSG_STDINEOF:
		attach_gone(c);
		return;
	case MSG_DATA:
		break;
	default:
		return;
	}
	if (k->in.s.fd < 0 || m->n == 0 || !(c->pending = malloc(m->n)))
		return;
	memcpy(c->pending, m->p, m->n);
	c->npending = (uint32_t)m->n;
	c->opending = 0;
	if (!input_write(c)) {
		/* Not heard until the container has read: the sender waits. */
		source_pause(&c->s);
		source_resume(&k->in.s, EPOLLOUT);
	}
}

/* attach_gone ends an attacher's input. */
void attach_gone(struct conn *c)
{
	struct ctr *k = c->ctr;
	free(c->pending);
	c->pending = NULL;
	if ((k->flags & FLAG_STDINONCE) && !(k->flags & FLAG_TTY) && k->in.s.fd >= 0)
		input_end(k);
}

int ctr_resize(struct ctr *k, uint32_t w, uint32_t h)
{
	struct winsize ws = { .ws_row = (unsigned short)h, .ws_col = (unsigned short)w };
	if (!(k->flags & FLAG_TTY) || k->out[0].s.fd < 0)
		return -ENOTTY;
	return ioctl(k->out[0].s.fd, TIOCSWINSZ, &ws) < 0 ? -errno : 0;
}
