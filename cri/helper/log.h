/*
 * The log of a container. See log.c.
 */
#ifndef BERTH_LOG_H
#define BERTH_LOG_H

#include <stddef.h>
#include <stdint.h>

#define LINEMAX (16 * 1024) /* what the CRI log format has in one line */

struct log {
	char *path;
	int fd;
	int64_t size, max;
	uint32_t files;
	int64_t rotated; /* second of the last rotation */
	int seq;	 /* rotations in that second */
	uint64_t lost;	 /* lines there was no room for */
	size_t buffered; /* bytes of ours in the shared output buffer */
	uint32_t lines;	 /* lines of ours in there */
};

struct stream;
int log_open(struct log *l);
void log_close(struct log *l);
void log_data(struct stream *s, const char *p, size_t n);
void log_end(struct stream *s);
void log_flush(struct log *l);
#endif
