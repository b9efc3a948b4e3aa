/*
 * Messages: what is in one, and building an answer. See wire.c.
 */
#ifndef BERTH_WIRE_H
#define BERTH_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "proto.h"

#define IDMAX 128 /* what an ID of a container has at most */

/* A string inside a message. */
struct span {
	const char *p;
	uint32_t n;
};

/* A message that was received, with the files that came with it. */
struct msg {
	struct header h;
	const char *p; /* payload */
	size_t n;
	void *map; /* where the payload is when it came in a memfd */
	int fds[4];
	int nfds;
};

int msg_recv(int fd, struct msg *m);
void msg_free(struct msg *m);
int msg_valid(const char *p, size_t n);
int tag_next(const struct msg *m, size_t *at, enum tag t, struct span *v);
struct span tag_str(const struct msg *m, enum tag t);
uint32_t tag_u32(const struct msg *m, enum tag t);
uint64_t tag_u64(const struct msg *m, enum tag t);
int tag_has(const struct msg *m, enum tag t);
char *span_dup(struct span s);
struct reply {
	char buf[2048];
	size_t n;
};
void reply_start(struct reply *r, enum op op);
void reply_bytes(struct reply *r, enum tag t, const void *p, size_t n);
void reply_u32(struct reply *r, enum tag t, uint32_t v);
void reply_u64(struct reply *r, enum tag t, uint64_t v);
int reply_send(struct reply *r, int fd, int pass);
void reply_error(int fd, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#endif
